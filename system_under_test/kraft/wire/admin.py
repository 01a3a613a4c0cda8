"""Requests that one decision of the active controller answers, one entry each.

`decision.py` states what an entry is, and `brokers.py` has those of brokers.  `api.py` states who may be asked, how a
request can end and what a client may conclude.  `controller/` decides.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.access import (
    Acl,
    AclFilter,
    AclResult,
    Deletion,
    FilterResult,
    Upsertion,
    UserResult,
    alter_credentials,
    create_acls,
    delete_acls,
)
from system_under_test.kraft.controller.configs import (
    Alteration,
    ConfigOperation,
    Resource,
    ResourceResult,
    alter_configs,
    replace_configs,
)
from system_under_test.kraft.controller.features import FeatureResult, LevelWanted, update_features
from system_under_test.kraft.controller.quotas import QuotaAlteration, QuotaResult, alter_quotas
from system_under_test.kraft.controller.topics import (
    MorePartitions,
    NewTopic,
    TopicResult,
    create_partitions,
    create_topics,
    delete_topics,
)
from system_under_test.kraft.records.metadata import QuotaEntity
from system_under_test.kraft.wire import answers, brokers
from system_under_test.kraft.wire.decision import Decide, Decision, DecisionContext
from system_under_test.kraft.wire.versions import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    UPDATE_FEATURES,
)


def _create_topics(body: Any, cluster: DecisionContext) -> Decide:
    wanted = [_new_topic(topic) for topic in body.topics]
    return lambda image: create_topics(
        image, wanted, cluster.candidates(image), cluster.new_uuid, validate_only=body.validate_only
    )


def _new_topic(topic: Any) -> NewTopic:
    named = [f"partition {a.partition_index}" for a in topic.assignments] + [f"config {c.name}" for c in topic.configs]
    return NewTopic(
        repeats=next((name for name, times in Counter(named).items() if times > 1), None),
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={a.partition_index: tuple(a.broker_ids) for a in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
    )


def _create_partitions(body: Any, cluster: DecisionContext) -> Decide:
    wanted = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else tuple(tuple(each.broker_ids) for each in topic.assignments),
        )
        for topic in body.topics
    ]
    return lambda image: create_partitions(image, wanted, cluster.candidates(image), validate_only=body.validate_only)


def _topics_refused(body: Any, error: ErrorCode, message: str) -> list[TopicResult]:
    return [TopicResult(topic.name, error, message) for topic in body.topics]


def _to_delete(body: Any) -> list[str | UUID]:
    """Up to version 5 topics are named; from then on each is named or has an id."""
    if hasattr(body, "topic_names"):
        return list(body.topic_names)
    return [topic.topic_id or UUID(int=0) if topic.name is None else topic.name for topic in body.topics]


def _deletions_refused(body: Any, error: ErrorCode, message: str) -> list[TopicResult]:
    return [
        TopicResult(which, error, message) if isinstance(which, str) else TopicResult("", error, message, which)
        for which in _to_delete(body)
    ]


def _alterations(body: Any) -> list[Resource]:
    return [
        Resource(
            resource.resource_type,
            resource.resource_name,
            tuple(Alteration(config.name, config.config_operation, config.value) for config in resource.configs),
        )
        for resource in body.resources
    ]


def _replacements(body: Any) -> list[Resource]:
    return [
        Resource(
            resource.resource_type,
            resource.resource_name,
            tuple(Alteration(config.name, ConfigOperation.SET, config.value) for config in resource.configs),
        )
        for resource in body.resources
    ]


def _resources_refused(body: Any, error: ErrorCode, message: str) -> list[ResourceResult]:
    return [ResourceResult(each.resource_type, each.resource_name, error, message) for each in body.resources]


def levels_wanted(body: Any) -> list[LevelWanted]:
    """Version 0 has a flag for a lower level; later ones say how far a downgrade may go (KIP-584, KIP-778)."""
    return [
        LevelWanted(
            each.feature,
            each.max_version_level,
            may_fall=each.allow_downgrade if hasattr(each, "allow_downgrade") else each.upgrade_type > 1,
        )
        for each in body.feature_updates
    ]


def validates_only(body: Any) -> bool:
    """Version 0 of UpdateFeatures cannot ask for a mere check."""
    return bool(getattr(body, "validate_only", False))


def _acls(body: Any) -> list[Acl]:
    return [
        Acl(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in body.creations
    ]


def acl_filter(each: Any) -> AclFilter:
    """The filter of a DescribeAcls request, or of one entry of a DeleteAcls request."""
    return AclFilter(
        each.resource_type_filter,
        each.resource_name_filter,
        each.pattern_type_filter,
        each.principal_filter,
        each.host_filter,
        each.operation,
        each.permission_type,
    )


def _quota_alterations(body: Any) -> list[QuotaAlteration]:
    return [
        QuotaAlteration(
            _quota_entity(entry), tuple((each.key, None if each.remove else each.value) for each in entry.ops)
        )
        for entry in body.entries
    ]


def _quota_entity(entry: Any) -> tuple[QuotaEntity, ...]:
    return tuple(QuotaEntity(part.entity_type, part.entity_name) for part in entry.entity)


def _alter_credentials(body: Any, cluster: DecisionContext) -> Decide:
    deletions = [Deletion(each.name, each.mechanism) for each in body.deletions]
    upsertions = [
        Upsertion(each.name, each.mechanism, each.iterations, each.salt, each.salted_password)
        for each in body.upsertions
    ]
    return lambda image: alter_credentials(image, deletions, upsertions)


DECISIONS: dict[int, Decision] = {
    **brokers.DECISIONS,
    CREATE_TOPICS: Decision(_create_topics, _topics_refused, answers.create_topics),
    CREATE_PARTITIONS: Decision(_create_partitions, _topics_refused, answers.create_partitions),
    DELETE_TOPICS: Decision(
        lambda body, cluster: lambda image: delete_topics(image, _to_delete(body)),
        _deletions_refused,
        answers.delete_topics,
    ),
    INCREMENTAL_ALTER_CONFIGS: Decision(
        lambda body, cluster: lambda image: alter_configs(image, _alterations(body), validate_only=body.validate_only),
        _resources_refused,
        answers.incremental_alter_configs,
    ),
    ALTER_CONFIGS: Decision(
        lambda body, cluster: (
            lambda image: replace_configs(image, _replacements(body), validate_only=body.validate_only)
        ),
        _resources_refused,
        answers.alter_configs,
    ),
    CREATE_ACLS: Decision(
        lambda body, cluster: lambda image: create_acls(image, _acls(body), cluster.new_uuid),
        lambda body, error, message: [AclResult(error, message)] * len(body.creations),
        answers.create_acls,
    ),
    DELETE_ACLS: Decision(
        lambda body, cluster: lambda image: delete_acls(image, [acl_filter(each) for each in body.filters]),
        lambda body, error, message: [FilterResult(error, message)] * len(body.filters),
        answers.delete_acls,
    ),
    ALTER_CLIENT_QUOTAS: Decision(
        lambda body, cluster: (
            lambda image: alter_quotas(image, _quota_alterations(body), validate_only=body.validate_only)
        ),
        lambda body, error, message: [QuotaResult(_quota_entity(each), error, message) for each in body.entries],
        answers.alter_client_quotas,
    ),
    ALTER_USER_SCRAM_CREDENTIALS: Decision(
        _alter_credentials,
        lambda body, error, message: [
            UserResult(user, error, message)
            for user in dict.fromkeys(e.name for e in (*body.deletions, *body.upsertions))
        ],
        answers.alter_user_scram_credentials,
    ),
    UPDATE_FEATURES: Decision(
        lambda body, cluster: (
            lambda image: update_features(
                image, levels_wanted(body), cluster.quorum.kraft_version, validate_only=validates_only(body)
            )
        ),
        lambda body, error, message: [FeatureResult(each.feature, error, message) for each in body.feature_updates],
        answers.update_features,
    ),
}
"""API key -> how it is decided."""
