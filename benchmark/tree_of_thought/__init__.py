"""Tree of thought on grade-school maths: plans, solutions, checks and answers, each in branches."""
