"""From a schedule to the plan of one rank: dependencies, placement, instructions."""
