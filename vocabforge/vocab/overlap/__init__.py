"""What two vocabularies share."""
