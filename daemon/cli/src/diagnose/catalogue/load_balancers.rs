//! The lifecycle of a load balancer. Sources: the service controller of Kubernetes, and messages of cloud providers.

use super::{Cause, Entry};
use crate::diagnose::finding::Severity;

const RATE: Cause = Cause {
    word: "RequestLimitExceeded",
    means: "the cloud limits how often its API may be called",
    remedy: "change fewer services at a time, have the limit raised; it is tried again by itself",
};

const UNAUTHORIZED: Cause = Cause {
    word: "UnauthorizedOperation",
    means: "the cloud does not let the controller do this (AWS: the IAM role)",
    remedy: "allow elasticloadbalancing:* on load balancers, ec2:DescribeInstances and ec2:DescribeSecurityGroups",
};

const AUTHORIZATION_FAILED: Cause = Cause {
    word: "AuthorizationFailed",
    means: "the cloud does not let the controller do this (Azure: the service principal)",
    remedy: "assign the role Network Contributor to it on the resource group",
};

const QUOTA: Cause = Cause {
    word: "QuotaExceeded",
    means: "the account has as many load balancers as it may have",
    remedy: "delete those that are not used, or have the quota raised",
};

const PARAMETER: Cause = Cause {
    word: "InvalidParameterValue",
    means: "the cloud does not understand what the service's annotations ask for",
    remedy: "correct the annotations of the service as the cloud's manual says",
};

const UNREACHED: Cause = Cause {
    word: "context deadline exceeded",
    means: "the cloud's API has not answered in time",
    remedy: "look at the way from the controller to the cloud's API (network, firewall); restart cloud-controller-manager",
};

const UNRESOLVED: Cause = Cause {
    word: "unable to resolve",
    means: "the name of the cloud's API does not resolve",
    remedy: "look at the DNS of the host that cloud-controller-manager runs on",
};

const CREDENTIALS: Cause = Cause {
    word: "AuthFailure",
    means: "the cloud does not accept the controller's credentials",
    remedy: "renew them, and see what they may do",
};

const REFUSED: Cause = Cause {
    word: "connection refused",
    means: "whom the controller asks is not running",
    remedy: "see whether cloud-controller-manager runs: kubectl get pods -n kube-system",
};

const IN_PROGRESS: &str = "nothing, unless it stays the last one for longer than five minutes: then look at the log of \
                           cloud-controller-manager";

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        reason: "EnsuringLoadBalancer",
        kind: "Normal",
        source: "service-controller",
        severity: Severity::Info,
        meaning: "the controller has begun to bring the load balancer in line with the service",
        causes: &[],
        remedy: IN_PROGRESS,
    },
    Entry {
        reason: "EnsuredLoadBalancer",
        kind: "Normal",
        source: "service-controller",
        severity: Severity::Ok,
        meaning: "the load balancer is there and as the service asks; its address is in the service's status",
        causes: &[],
        remedy: "",
    },
    Entry {
        reason: "CreatingLoadBalancer",
        kind: "Normal",
        source: "service-controller",
        severity: Severity::Info,
        meaning: "the cloud is being asked for a new load balancer, which takes one to five minutes",
        causes: &[],
        remedy: IN_PROGRESS,
    },
    Entry {
        reason: "CreatedLoadBalancer",
        kind: "Normal",
        source: "service-controller",
        severity: Severity::Ok,
        meaning: "the cloud has made the load balancer and given it an address",
        causes: &[],
        remedy: "",
    },
    Entry {
        reason: "DeletingLoadBalancer",
        kind: "Normal",
        source: "service-controller",
        severity: Severity::Warning,
        meaning: "the load balancer is being deleted, because the service is, or is not of type LoadBalancer any more: \
                  clients outside lose it at once",
        causes: &[],
        remedy: "if that was not meant: apply the service again with type LoadBalancer, and find out who changed it",
    },
    Entry {
        reason: "DeletedLoadBalancer",
        kind: "Normal",
        source: "service-controller",
        severity: Severity::Warning,
        meaning: "the load balancer is gone: clients outside do not reach the service",
        causes: &[],
        remedy: "if that was not meant: apply the service again with type LoadBalancer; it gets a new address",
    },
    Entry {
        reason: "UpdatedLoadBalancer",
        kind: "Normal",
        source: "service-controller",
        severity: Severity::Ok,
        meaning: "the load balancer follows a change of the service's ports, affinity or annotations, or of the nodes",
        causes: &[],
        remedy: "",
    },
    Entry {
        reason: "UpdateLoadBalancerFailed",
        kind: "Warning",
        source: "service-controller",
        severity: Severity::Warning,
        meaning: "the load balancer could not be changed: new ports do not work there, new nodes get no traffic",
        causes: &[RATE, UNAUTHORIZED, QUOTA, PARAMETER, AUTHORIZATION_FAILED, UNREACHED, UNRESOLVED, CREDENTIALS],
        remedy: "read the message and the log of cloud-controller-manager; it is tried again by itself",
    },
    Entry {
        reason: "DeleteLoadBalancerFailed",
        kind: "Warning",
        source: "service-controller",
        severity: Severity::Warning,
        meaning: "the load balancer could not be deleted: the service stays in deletion, and the cloud goes on charging",
        causes: &[
            Cause {
                word: "LoadBalancerNotFound",
                means: "somebody has deleted it by hand already",
                remedy: "let the service go: remove the finalizer service.kubernetes.io/load-balancer-cleanup from it",
            },
            Cause {
                word: "DependencyViolation",
                means: "something in the cloud still depends on it, such as targets or a security group",
                remedy: "take those away by hand; the deletion is tried again by itself",
            },
            UNAUTHORIZED,
            RATE,
        ],
        remedy: "see what is left of it in the cloud; take the finalizer away only when that is cleaned up",
    },
    Entry {
        reason: "UnAvailableLoadBalancer",
        kind: "Warning",
        source: "service-controller",
        severity: Severity::Critical,
        meaning: "the load balancer has nobody to send to: clients outside reach nothing",
        causes: &[
            Cause {
                word: "no available nodes",
                means: "no node is ready, or all are left out of load balancers",
                remedy: "kubectl get nodes; see the label node.kubernetes.io/exclude-from-external-load-balancers",
            },
            Cause {
                word: "unhealthy",
                means: "every node failed the load balancer's health check",
                remedy: "does the NodePort answer, or the healthCheckNodePort with externalTrafficPolicy Local? Do the \
                         check's path, port and the firewall fit?",
            },
        ],
        remedy: "see whether nodes are ready and the service has endpoints; with externalTrafficPolicy Local only nodes with \
                 a pod of it count",
    },
    Entry {
        reason: "SyncLoadBalancerFailed",
        kind: "Warning",
        source: "service-controller",
        severity: Severity::Warning,
        meaning: "the load balancer could not be made, changed or deleted; without one already there the service stays pending",
        causes: &[
            RATE,
            UNREACHED,
            UNRESOLVED,
            CREDENTIALS,
            UNAUTHORIZED,
            AUTHORIZATION_FAILED,
            QUOTA,
            PARAMETER,
            REFUSED,
        ],
        remedy: "read the message and the log of cloud-controller-manager; it is tried again by itself",
    },
];
