"""The report of `experiment=suite`: every task with every model, from the rows of its runs and the kept results."""
