"""Branch, solve, merge: an essay judged on several dimensions at once, then graded."""
