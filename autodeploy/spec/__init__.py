"""What is asked: model, job, cluster, target, plan, arrangement, space, as values that do not change."""
