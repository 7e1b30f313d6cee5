"""What tests share: a whole collection in one process, published and searched for real."""
