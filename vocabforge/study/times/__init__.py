"""Times of draft heads at several shapes, and their byte roofline."""
