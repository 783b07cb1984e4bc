"""A stand-in for ComfyUI: the same HTTP and websocket interface, and a few nodes that really run.

It answers as a ComfyUI 0.7.0 was recorded to answer, its bugs included, because those are what
a client has to live with. It has no models and needs no GPU. Like the real thing it has no
authentication, reads any image its user may read, and forgets everything when it stops: it
belongs on loopback.
"""
