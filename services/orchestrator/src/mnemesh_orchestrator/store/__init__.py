"""Where agents, conversations, runs, their journal and their events are kept."""
