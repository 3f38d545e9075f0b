"""What every room uses: errors, units, timelines, the job."""
