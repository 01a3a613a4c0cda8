"""How often beacons are sent: the datagrams on every directed link that show whether it is cut or open."""

from __future__ import annotations

DENSE_INTERVAL_MS = 2.0
"""Around inject and heal: 150 beacons a link, three times what is needed, for a sender that is starved of CPU."""
CALM_INTERVAL_MS = 15.0
"""At all other times.  A cut needs 50 silent beacons for each proof, and a proof in every three seconds of a hold: a
sender that gets half of its CPU still gives that."""
