"""Archives, passages and searches: values, their validation, and pure rules."""
