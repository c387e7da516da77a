"""What every program that runs for long shares: monitors, its pages, what it says, and how it ends."""
