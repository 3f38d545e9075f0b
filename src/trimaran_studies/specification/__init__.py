"""What Trimaran must do of four published studies, requirement by requirement, with the figure that shows it."""
