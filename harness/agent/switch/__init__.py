"""The switch between nodes: a process that carries every frame, or loses, delays, damages or rejects it, on order"""
