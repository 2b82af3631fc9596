//! Ports of hosts, name resolution, addresses. Events about the first two concern pods: backends that never start.

use super::{Cause, Entry};
use crate::diagnose::finding::Severity;

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        reason: "HostPortConflict",
        kind: "Warning",
        source: "kubelet",
        severity: Severity::Warning,
        meaning: "a pod cannot start, because its hostPort is taken on its node; a hostPort goes past services altogether",
        causes: &[Cause {
            word: "already in use",
            means: "another pod or a process of the host has the port",
            remedy: "find it on the node with `ss -tulnp`; stop it, choose another hostPort, or use a NodePort service",
        }],
        remedy: "have one such pod a node (a DaemonSet, anti-affinity), or use a NodePort service in place of the hostPort",
    },
    Entry {
        reason: "DNSConfigForming",
        kind: "Warning",
        source: "kubelet",
        severity: Severity::Warning,
        meaning: "a pod's /etc/resolv.conf could not be made as wanted: names of services may not resolve in it",
        causes: &[
            Cause {
                word: "no such file",
                means: "the resolv.conf that the kubelet builds on is not there",
                remedy: "make /etc/resolv.conf on the node, or name another with the kubelet's resolvConf",
            },
            Cause {
                word: "cannot find service",
                means: "the cluster's DNS service does not exist",
                remedy: "kubectl get service -n kube-system kube-dns; deploy CoreDNS again",
            },
            Cause {
                word: "no such host",
                means: "the cluster's DNS does not answer",
                remedy: "kubectl get pods -n kube-system -l k8s-app=kube-dns, and their logs",
            },
            Cause {
                word: "limits were exceeded",
                means: "there are more name servers or search domains than a resolv.conf may have; some were left out",
                remedy: "shorten the node's /etc/resolv.conf, or the pod's dnsConfig",
            },
        ],
        remedy: "see dnsPolicy and dnsConfig of the pod, and clusterDNS and clusterDomain of the kubelet",
    },
    Entry {
        reason: "IPAllocated",
        kind: "Normal",
        source: "kubelet, cloud-controller-manager",
        severity: Severity::Ok,
        meaning: "a pod or service has got its address",
        causes: &[],
        remedy: "",
    },
    Entry {
        reason: "IPNotAllocated",
        kind: "Warning",
        source: "kubelet, cloud-controller-manager",
        severity: Severity::Critical,
        meaning: "a pod or service has got no address: a pod does not start, a service stays pending",
        causes: &[
            Cause {
                word: "exhausted",
                means: "the pool of addresses is used up",
                remedy: "free addresses that are not used; enlarge the pool: the pod CIDR, the service CIDR \
                         (--service-cluster-ip-range), or the quota of the cloud",
            },
            Cause {
                word: "quota",
                means: "the cloud gives out no more addresses to this account",
                remedy: "release addresses that are not used, or have the quota raised",
            },
            Cause {
                word: "already allocated",
                means: "somebody else has the address that was asked for",
                remedy: "leave the choice to Kubernetes, or ask for a free one",
            },
        ],
        remedy: "for a pod see the network plugin's IPAM and its log; for a clusterIP the service CIDR; for a load balancer the \
                 cloud's quota",
    },
];
