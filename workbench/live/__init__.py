"""What the devices do now: memory, utilisation, profiles joined to stages and clients, rounds as they run."""
