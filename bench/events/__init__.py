"""What it costs a router to note what it handed to whom."""
