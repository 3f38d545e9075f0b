"""From which number of devices on a hybrid of data and model parallelism reaches the target sooner."""
