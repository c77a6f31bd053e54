"""EAGLE-3, EAGLE-1 and Medusa drafters and their files."""
