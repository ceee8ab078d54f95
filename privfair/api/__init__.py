"""What `import privfair as pf` offers beside single questions: budgets, plans and models in memory."""
