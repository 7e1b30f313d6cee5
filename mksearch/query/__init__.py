"""The client's side of a search: trapdoor, answers, ranking, records.  No input or output."""
