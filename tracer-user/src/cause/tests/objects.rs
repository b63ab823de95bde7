//! What is remembered of objects.
