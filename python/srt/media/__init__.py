"""Images and videos: from bytes to the pixels that a model's vision tower reads. No torch."""
