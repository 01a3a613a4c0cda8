"""What the controller of a Kafka cluster may have decided wrongly: registrations of brokers, replicas of partitions."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind, kinds

_STATES = {
    "broker epoch is not that of its registration": (
        "The epoch of a broker is the offset of the record that registered it, so that epochs rise and never repeat. "
        "This broker has another epoch, so requests of an older life of it could be taken for new ones."
    ),
    "new incarnation is not fenced": (
        "A broker that has just started is fenced until it has caught up, so that no partition depends on it. This one "
        "was registered as ready at once."
    ),
    "record of another incarnation": (
        "A change of a broker names the epoch of its present life. This record names another one, so an old request "
        "changed a broker that has started anew."
    ),
    "leader is not in sync": (
        "The leader of a partition is one of its in-sync replicas, because only these hold all committed data. This "
        "partition has a leader outside of that set."
    ),
    "in sync but no replica": (
        "The in-sync set of a partition holds brokers that have a replica of it, each once. This set holds another "
        "broker, or one twice."
    ),
    "in sync and eligible at once": (
        "A broker is either in sync or kept as an eligible leader for later (KIP-966). Here one broker stands in both "
        "lists, so the controller could count it twice."
    ),
    "partition made twice": (
        "A partition is made once and changed afterwards. Here a second record makes it again, so its leader and its "
        "in-sync set are overwritten without a look at the old ones."
    ),
    "change of a partition that does not exist": (
        "A change names a partition that an earlier record made. This one names a partition that was never made or is "
        "deleted, so the change is lost or reaches another topic."
    ),
    "leader is not alive": (
        "A partition is led by a broker that is registered, not fenced and not leaving. This one was given to a broker "
        "that cannot serve it."
    ),
    "broker joins the in-sync set while it is not alive": (
        "Only a broker that is alive may join an in-sync set, because writes wait for all its members. This broker was "
        "fenced, leaving or not registered."
    ),
    "fenced broker keeps its partitions": (
        "A broker that is fenced or leaves loses its leaderships and its places in in-sync sets in the same step. This "
        "one kept some, so clients wait for a broker that does not answer."
    ),
    "leader was not in sync": (
        "A new leader comes from the in-sync or the eligible replicas, unless the topic allows unclean elections. This "
        "leader came from neither, so committed data may be missing."
    ),
    "eligible leader was not in sync": (
        "An eligible leader holds all that was acknowledged, because it left the in-sync set last. This one was "
        "neither in sync nor eligible before, so data is lost if it is elected."
    ),
    "eligible leaders while enough are in sync": (
        "While enough replicas are in sync, writes are acknowledged that the eligible leaders do not have. So they "
        "must cease to be eligible then, and these did not."
    ),
    "producer ids were handed out before": (
        "Each block of producer ids is given to one broker, once. This block reaches back into an earlier one, so two "
        "producers can get the same id and be taken for one."
    ),
    "broker is fenced although it was heard": (
        "A controller fences a broker only when no heartbeat of it has arrived for a whole session. This broker was "
        "fenced although one was answered shortly before."
    ),
    "silent broker is never fenced": (
        "A broker that is silent for longer than a session is fenced, so that others lead its partitions. This one was "
        "dead, stopped or cut off for long, and the controller worked and did not fence it."
    ),
    "broker is unfenced before it knew its registration": (
        "A broker is fenced until it has applied the record of its own registration. This one was unfenced when it "
        "could not know that record yet, so it served with old metadata."
    ),
    "in-sync set grew by a leader that did not know the partition": (
        "A leader adds a broker to an in-sync set by what it knows of the partition and of that broker. This leader "
        "did not know the last change or the registration yet, so an old request was taken."
    ),
    "broker came back uncleanly and stays an eligible leader": (
        "A broker that did not leave in order may have lost data, so its registration ends that it is an eligible "
        "leader. This one stayed one until it served again, so it could lead without acknowledged data."
    ),
    "broker is refused because of itself": (
        "A broker that got no answer asks to be registered once more. This one was refused because another incarnation "
        "was registered, though that was its own one, so it came up late or never."
    ),
    "leader is dropped and was never fenced": (
        "A leader leaves the in-sync set of its partition only if it is fenced, leaves, or loses its replica. This one "
        "was dropped while it was alive."
    ),
    "reassignment ended before its replicas were in sync": (
        "A reassignment ends when all replicas that it adds are in sync. This one ended before, so the old replicas "
        "were removed while the new ones lacked data."
    ),
}

BROKERS: Mapping[str, ViolationKind] = kinds(Stage.STATE, _STATES)
