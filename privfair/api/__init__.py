"""What `import privfair as pf` offers in addition to single questions: budgets, plans and models in memory."""
