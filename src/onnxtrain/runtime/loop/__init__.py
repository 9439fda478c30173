"""The loop around the step: Trainer, callbacks, metrics, schedules, batches."""
