"""What became of each element that clients put into sets, logs and queues: kept, lost or unknown"""
