use super::*;

fn reader() -> Reader {
    Reader::new(Source::Kubernetes, "here".into())
}

fn service_of(yaml: &str) -> (Option<Service>, Vec<String>) {
    service(&serde_saphyr::from_str(yaml).unwrap(), &mut reader())
}

fn slice_of(yaml: &str) -> (Option<Slice>, Vec<String>) {
    slice(&serde_saphyr::from_str(yaml).unwrap(), &mut reader())
}

/// The frontends of each port as `ClusterIP 10.96.7.7:80`.
fn frontends(service: &Service) -> Vec<Vec<String>> {
    let of_port = |port: &ServicePort| {
        let shown = port.frontends.iter().map(|f| format!("{} {}", f.kind, f.l4(port.protocol)));
        shown.collect()
    };
    service.ports.iter().map(of_port).collect()
}

const INTRANET: &str = "
metadata:
  name: kubernetes-intranet
  namespace: default
  creationTimestamp: 2024-05-01T12:34:56Z
  resourceVersion: '12345'
  labels: {app: x}
spec:
  type: LoadBalancer
  clusterIP: 192.168.60.179
  clusterIPs: [192.168.60.179]
  ipFamilies: [IPv4]
  externalTrafficPolicy: Cluster
  internalTrafficPolicy: Cluster
  ports:
  - name: https
    port: 443
    nodePort: 30965
    targetPort: 60002
    protocol: TCP
status:
  loadBalancer:
    ingress:
    - ip: 10.15.1.8
      ipMode: VIP
";

#[test]
fn a_load_balancer_has_all_kinds_of_address() {
    let (value, notices) = service_of(INTRANET);
    let service = value.unwrap();
    assert_eq!(notices, [""; 0]);
    assert_eq!(service.name, ServiceName::new("default", "kubernetes-intranet"));
    assert_eq!(service.created, Some(1_714_566_896));
    assert_eq!(service.source, Source::Kubernetes);
    assert_eq!(service.origin, Origin { object: "here".into(), resource_version: "12345".into(), ..Origin::default() });
    assert_eq!((&*service.ports[0].name, service.ports[0].protocol), ("https", Protocol::Tcp));
    assert_eq!(
        frontends(&service),
        [["ClusterIP 192.168.60.179:443/TCP", "NodePort 0.0.0.0:30965/TCP", "LoadBalancer 10.15.1.8:443/TCP"]]
    );
}

#[test]
fn an_annotation_changes_nothing_but_the_version() {
    let annotated = INTRANET.replace("labels:", "annotations: {touched: now}\n  labels:").replace("12345", "12346");
    let (before, mut after) = (service_of(INTRANET).0.unwrap(), service_of(&annotated).0.unwrap());
    after.origin = before.origin.clone();
    assert_eq!(before, after);
}

#[test]
fn dual_stack_has_a_node_port_in_each_family_and_nothing_in_others() {
    let service = service_of(
        "
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [10.96.0.7, '2001:db8::7', 10.96.0.8]
  externalIPs: [198.51.100.1, '2001:db8::e', 198.51.100.1, 0.0.0.0, 224.0.0.1, 010.0.0.1, nonsense]
  ports:
  - {port: 80, nodePort: 30080}
",
    );
    let families = frontends(service.0.as_ref().unwrap());
    assert_eq!(
        families[0],
        [
            "ClusterIP 10.96.0.7:80/TCP",
            "ClusterIP [2001:db8::7]:80/TCP",
            "NodePort 0.0.0.0:30080/TCP",
            "NodePort [::]:30080/TCP",
            "ExternalIP 198.51.100.1:80/TCP",
            "ExternalIP [2001:db8::e]:80/TCP",
        ]
    );
    assert_eq!(service.1.len(), 5, "{:?}", service.1);

    let v4_only = service_of(
        "{metadata: {name: a}, spec: {clusterIP: 10.96.0.7, externalIPs: ['2001:db8::e'], ports: [{port: 80}]},
          status: {loadBalancer: {ingress: [{ip: '2001:db8::f'}]}}}",
    );
    assert_eq!(frontends(&v4_only.0.unwrap()), [["ClusterIP 10.96.0.7:80/TCP"]]);
    assert_eq!(v4_only.1.len(), 2);
}

#[test]
fn a_proxying_load_balancer_and_a_hostname_are_no_addresses() {
    let service = service_of(
        "{metadata: {name: a}, spec: {clusterIP: 10.96.0.7, ports: [{port: 80, nodePort: 0}]},
          status: {loadBalancer: {ingress: [{ip: 198.51.100.1, ipMode: Proxy}, {hostname: x.example}, {ip: 198.51.100.2}]}}}",
    );
    assert_eq!(service.1, [""; 0]);
    let frontends = frontends(&service.0.unwrap());
    assert_eq!(frontends, [["ClusterIP 10.96.0.7:80/TCP", "LoadBalancer 198.51.100.2:80/TCP"]]);
}

/// With an empty datapath.external-ips, such an address was rejected as an external IP and not served at all.
#[test]
fn a_load_balancers_address_among_the_external_ips_is_the_load_balancers() {
    let service = service_of(
        "{metadata: {name: a}, spec: {clusterIP: 10.96.0.7, externalIPs: [198.51.100.2, 198.51.100.3], ports: [{port: 80}]},
          status: {loadBalancer: {ingress: [{ip: 198.51.100.2}, {ip: 198.51.100.3, ipMode: Proxy}]}}}",
    );
    let frontends = frontends(&service.0.unwrap());
    let expected = ["ClusterIP 10.96.0.7:80/TCP", "ExternalIP 198.51.100.3:80/TCP", "LoadBalancer 198.51.100.2:80/TCP"];
    assert_eq!(frontends, [expected]);
}

#[test]
fn services_that_kube_proxy_does_not_serve_are_left_out_with_a_reason() {
    for (spec, reason) in [
        ("spec: {clusterIP: None}", "headless"),
        ("spec: {clusterIPs: [None]}", "headless"),
        ("spec: {type: ExternalName, clusterIP: 10.96.0.1}", "ExternalName"),
        ("spec: {}", "no usable clusterIP"),
        ("spec: null", "no usable clusterIP"),
        ("spec: {clusterIP: ''}", "no usable clusterIP"),
        ("spec: {clusterIP: 10.96.0.01}", "no usable clusterIP"),
    ] {
        let (value, notices) = service_of(&format!("metadata: {{name: a}}\n{spec}\n"));
        assert_eq!(value, None, "{spec}");
        assert!(notices.last().unwrap().contains(reason), "{spec}: {notices:?}");
    }
    let other_proxy =
        "{metadata: {name: a, labels: {service.kubernetes.io/service-proxy-name: ''}}, spec: {clusterIP: 10.96.0.1}}";
    assert_eq!(service_of(other_proxy).0, None);
}

#[test]
fn affinity_and_policies() {
    let policies = |spec: &str| {
        let service =
            service_of(&format!("{{metadata: {{name: a}}, spec: {{clusterIP: 10.96.0.1, {spec}}}}}")).0.unwrap();
        (service.affinity_seconds, service.internal_policy, service.external_policy)
    };
    let (cluster, local) = (TrafficPolicy::Cluster, TrafficPolicy::Local);
    assert_eq!(policies(""), (None, cluster, cluster));
    assert_eq!(policies("sessionAffinity: None"), (None, cluster, cluster));
    assert_eq!(policies("sessionAffinity: ClientIP"), (Some(10_800), cluster, cluster));
    assert_eq!(
        policies(
            "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, internalTrafficPolicy: Local"
        ),
        (Some(60), local, cluster)
    );
    assert_eq!(
        policies("sessionAffinityConfig: {clientIP: null}, externalTrafficPolicy: Local"),
        (None, cluster, local)
    );
}

#[test]
fn ports_that_cannot_be_served_are_ignored_alone() {
    let service = service_of(
        "{metadata: {name: a}, spec: {clusterIP: 10.96.0.1, ports: [
          {name: dns, port: 53, protocol: UDP}, {name: dns, port: 53, protocol: TCP}, {name: dns, port: 54},
          {name: zero}, {name: odd, port: 1, protocol: ICMP}, {name: sctp, port: 2, protocol: SCTP}]}}",
    );
    assert_eq!(service.1.len(), 3, "{:?}", service.1);
    assert_eq!(
        frontends(&service.0.unwrap()),
        [["ClusterIP 10.96.0.1:53/UDP"], ["ClusterIP 10.96.0.1:53/TCP"], ["ClusterIP 10.96.0.1:2/SCTP"]]
    );
}

const SLICE: &str = "
metadata:
  name: web-abc12
  namespace: shop
  resourceVersion: '7'
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
- addresses: [10.1.0.1, 10.1.0.99]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: node-1
  zone: zone-a
  hints: {forZones: [{name: zone-a}], forNodes: [{name: node-1}]}
- addresses: [10.1.0.2]
  conditions: {ready: false, serving: true, terminating: true}
  nodeName: null
  hints: {}
- addresses: [10.1.0.3]
  conditions: {ready: false, serving: false, terminating: true}
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: metrics, port: 9090}
";

#[test]
fn a_slice_gives_each_endpoint_every_port() {
    let (value, notices) = slice_of(SLICE);
    let slice = value.unwrap();
    assert_eq!(notices, [""; 0]);
    assert_eq!(slice.name, SliceName::new("shop", "web-abc12"));
    assert_eq!(slice.service, ServiceName::new("shop", "web"));
    assert_eq!(&*slice.origin.resource_version, "7");
    assert_eq!(slice.ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["http", "metrics"]);
    let [first, second, third] = &slice.ports[0].backends[..] else { panic!("{slice:?}") };
    assert_eq!((first.addr.to_string(), first.port), ("10.1.0.1".to_owned(), 8080));
    assert_eq!((first.state, first.weight), (BackendState::Active, 1));
    assert_eq!((first.node.as_deref(), first.zone.as_deref()), (Some("node-1"), Some("zone-a")));
    let hints = first.hints.as_ref().unwrap();
    assert_eq!((&*hints.zones[0], &*hints.nodes[0]), ("zone-a", "node-1"));
    assert_eq!((second.state, &second.node, &second.hints), (BackendState::Terminating, &None, &None));
    assert_eq!(third.state, BackendState::NotReady);
    assert_eq!(slice.ports[1].backends[2].port, 9090);
}

#[test]
fn conditions_that_are_not_said() {
    let yes = Some(true);
    let no = Some(false);
    for (ready, serving, terminating, expected) in [
        (None, None, None, BackendState::Active),
        (yes, no, yes, BackendState::Active),
        (no, None, None, BackendState::NotReady),
        (no, yes, None, BackendState::NotReady),
        (no, None, yes, BackendState::Terminating),
        (no, no, yes, BackendState::NotReady),
        (None, no, yes, BackendState::Active),
    ] {
        assert_eq!(
            state(Conditions { ready, serving, terminating }),
            expected,
            "{ready:?} {serving:?} {terminating:?}"
        );
    }
}

#[test]
fn null_is_the_same_as_nothing() {
    let slice = slice_of(
        "{metadata: {name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}, addressType: IPv4, endpoints: null, ports: null}",
    );
    let value = slice.0.unwrap();
    assert_eq!(value.ports, []);
    assert_eq!(value.name, SliceName::new("default", "kubernetes"));
    assert_eq!(slice.1, [""; 0]);
}

#[test]
fn slices_without_a_service_are_left_out() {
    for (yaml, reason) in [
        ("{metadata: {name: a}, addressType: IPv4}", "service-name"),
        ("{metadata: {name: a, labels: null}, addressType: IPv4}", "service-name"),
        ("{metadata: {name: a, labels: {kubernetes.io/service-name: ''}}, addressType: IPv4}", "service-name"),
        (
            "{metadata: {name: a, labels: {kubernetes.io/service-name: x, service.kubernetes.io/headless: ''}}, addressType: IPv4}",
            "headless",
        ),
        ("{metadata: {name: a, labels: {kubernetes.io/service-name: x}}, addressType: FQDN}", "FQDN"),
    ] {
        let (value, notices) = slice_of(yaml);
        assert_eq!(value, None);
        assert!(notices[0].contains(reason), "{notices:?}");
    }
}

#[test]
fn unusable_endpoints_and_ports_are_ignored_alone() {
    let slice = slice_of(
        "{metadata: {name: a, labels: {kubernetes.io/service-name: x}}, addressType: IPv6,
          endpoints: [{addresses: ['2001:db8::1']}, {addresses: [10.0.0.1]}, {addresses: []}, {addresses: null},
            {addresses: ['::']}, {addresses: ['ff02::1']}, {addresses: ['::ffff:10.0.0.1']}, {addresses: ['fe80::1%eth0']}],
          ports: [{name: '', port: 80}, {name: b}, {name: c, port: 0}, {name: d, port: 82, protocol: X}]}",
    );
    let ports = slice.0.unwrap().ports;
    assert_eq!(ports.len(), 1);
    assert_eq!(ports[0].backends.len(), 1);
    assert!(slice.1[0].starts_with("7 endpoints without a usable address"), "{:?}", slice.1);
    assert_eq!(slice.1.len(), 4);

    let v4 = slice_of(
        "{metadata: {name: a, labels: {kubernetes.io/service-name: x}}, addressType: IPv4,
          endpoints: [{addresses: [10.0.0.01]}, {addresses: ['2001:db8::1']}, {addresses: [169.254.128.7]}], ports: [{name: '', port: 80}]}",
    );
    assert_eq!(v4.0.unwrap().ports[0].backends.len(), 1);
}

/// This matches the apiserver's defaulting; in a manually written slice, the only port often has no name.
#[test]
fn a_port_without_a_name_has_the_empty_one() {
    for ports in ["[{port: 80}]", "[{name: null, port: 80}]", "[{name: '', port: 80}]"] {
        let slice = slice_of(&format!(
            "{{metadata: {{name: a, labels: {{kubernetes.io/service-name: x}}}}, addressType: IPv4,
              endpoints: [{{addresses: [10.0.0.1]}}], ports: {ports}}}"
        ));
        let ports = slice.0.unwrap().ports;
        assert_eq!((ports.len(), &*ports[0].name, ports[0].backends.len()), (1, "", 1));
    }
}

#[test]
fn a_health_check_port_is_for_load_balancers_with_a_local_policy() {
    let port = |kind: &str, policy: &str, port: &str| {
        let spec = format!("type: {kind}, externalTrafficPolicy: {policy}, healthCheckNodePort: {port}");
        let service =
            format!("{{metadata: {{name: web, namespace: shop}}, spec: {{clusterIP: 198.51.100.1, {spec}}}}}");
        service_of(&service).0.unwrap().health_check_port
    };
    assert_eq!(port("LoadBalancer", "Local", "31234"), Some(31_234));
    assert_eq!(port("LoadBalancer", "Cluster", "31234"), None);
    assert_eq!(port("NodePort", "Local", "31234"), None);
    assert_eq!(port("LoadBalancer", "Local", "0"), None);
    assert_eq!(port("LoadBalancer", "Local", "null"), None);
}

fn node_of(yaml: &str) -> NodeObject {
    node(&serde_saphyr::from_str(yaml).unwrap())
}

#[test]
fn a_node_is_leaving_when_it_is_deleted_or_tainted_for_it() {
    let leaving = |yaml: &str| node_of(yaml).leaving.map(|why| why.to_string());
    let taint =
        |key: &str| format!("{{spec: {{taints: [{{key: other}}, {{key: {key}, effect: NoSchedule, value: x}}]}}}}");
    assert_eq!(leaving("{metadata: {name: n1}, spec: {unschedulable: true}}"), None);
    assert_eq!(leaving(&taint("node.kubernetes.io/unschedulable")), None);
    assert_eq!(leaving(&taint("ToBeDeletedByClusterAutoscaler2")), None);
    let why = "it has the taint ToBeDeletedByClusterAutoscaler";
    assert_eq!(leaving(&taint("ToBeDeletedByClusterAutoscaler")).as_deref(), Some(why));
    let deleted = "{metadata: {deletionTimestamp: 2026-11-20T12:00:00Z}}";
    assert_eq!(leaving(deleted).as_deref(), Some("it is being deleted"));
    assert_eq!(leaving("{spec: null, status: null}"), None);
    assert_eq!(leaving("{spec: {taints: null}, status: {addresses: null}}"), None);
}

#[test]
fn a_node_has_one_address_of_each_family() {
    let addresses = |reported: &[(&str, &str)]| {
        let reported = reported.iter().map(|(kind, address)| format!("{{type: {kind}, address: '{address}'}}"));
        let reported = reported.collect::<Vec<_>>().join(", ");
        let node = node_of(&format!("{{status: {{addresses: [{reported}]}}}}"));
        node.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let (inside, outside) = ("InternalIP", "ExternalIP");
    assert_eq!(addresses(&[]), [""; 0]);
    assert_eq!(addresses(&[("Hostname", "192.0.2.9"), (inside, "192.0.2.1"), (inside, "192.0.2.2")]), ["192.0.2.1"]);
    assert_eq!(addresses(&[(outside, "203.0.113.1"), (inside, "192.0.2.1")]), ["192.0.2.1"]);
    assert_eq!(addresses(&[(outside, "203.0.113.1")]), ["203.0.113.1"]);
    let mixed = [(outside, "2001:db8::9"), (inside, "192.0.2.1"), (outside, "203.0.113.1")];
    assert_eq!(addresses(&mixed), ["192.0.2.1", "2001:db8::9"]);
    assert_eq!(addresses(&[(inside, "nonsense"), (inside, "0.0.0.0"), (inside, "192.0.2.3")]), ["192.0.2.3"]);
}

#[test]
fn invalid_source_ranges_never_become_no_ranges() {
    let ranges = |list: &str| {
        let yaml = INTRANET.replace("  ipFamilies", &format!("  loadBalancerSourceRanges: {list}\n  ipFamilies"));
        let (value, notices) = service_of(&yaml);
        let ranges = value.unwrap().source_ranges;
        (ranges.map(|ranges| ranges.iter().map(ToString::to_string).collect::<Vec<_>>()), notices.len())
    };
    let some = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    for (list, expected, notices) in [
        ("null", None, 0),
        ("[]", None, 0),
        ("[10.0.0.0/8, \"2001:db8::/32\"]", some(&["10.0.0.0/8", "2001:db8::/32"]), 0),
        ("[' 10.1.2.3/8 ']", some(&["10.0.0.0/8"]), 0),
        ("[0.0.0.0/0]", some(&["0.0.0.0/0"]), 0),
        ("[10.0.0.0/8, 10.0.0.1, nonsense]", some(&["10.0.0.0/8"]), 2),
        ("[nonsense]", some(&[]), 1),
    ] {
        assert_eq!(ranges(list), (expected, notices), "{list}");
    }
}

/// `diagnose` decodes slices separately and must ignore the same ones as the daemon.
#[test]
fn diagnose_looks_at_the_slices_that_are_taken_and_no_others() {
    for labels in ["kubernetes.io/service-name: a", "kubernetes.io/service-name: a, service.kubernetes.io/headless: ''"]
    {
        for address_type in ["IPv4", "IPv6", "FQDN", "''", "ipv4"] {
            let text = format!("{{metadata: {{name: a-1, labels: {{{labels}}}}}, addressType: {address_type}}}");
            let taken: EndpointSlice = serde_saphyr::from_str(&text).unwrap();
            let seen = serde_saphyr::from_str(&text).unwrap();
            let (value, notices) = slice(&taken, &mut reader());
            let reason = left_out(&seen);
            assert_eq!(value.is_none(), reason.is_some(), "{text}");
            assert!(reason.is_none_or(|why| notices == [format!("{why}; left out")]), "{text}: {notices:?}");
        }
    }
}

#[test]
fn annotations_ask_for_health_checks() {
    let annotated = |annotations: &str| {
        let (service, notices) =
            service_of(&INTRANET.replace("labels: {app: x}", &format!("annotations: {annotations}")));
        let service = service.unwrap();
        assert_eq!(service.ports.len(), 1, "it is served in any case");
        (service.health_check.map(|check| check.interval.as_secs()), service.health_check_error, notices)
    };
    for ignored in ["null", "{}", "{other/health-check: tcp, nodelb.io/health: tcp}"] {
        assert_eq!(annotated(ignored), (None, None, vec![]), "{ignored}");
    }
    let good = "{a: b, nodelb.io/health-check: 'http:/healthz', nodelb.io/health-check-interval: 5s}";
    assert_eq!(annotated(good), (Some(5), None, vec![]));
    for bad in ["{nodelb.io/health-check: null}", "{nodelb.io/health-check: \"tcp\\n\\e[31m\"}"] {
        let (check, error, notices) = annotated(bad);
        let error = error.unwrap();
        assert!(
            check.is_none() && error.contains("annotation nodelb.io/health-check: ") && error.contains("expected tcp")
        );
        assert!(!error.contains(|c: char| c.is_control()), "{error:?}");
        assert_eq!(notices, [error.to_string()]);
    }
    let huge = annotated(&format!("{{nodelb.io/health-check-{}: '{}'}}", "n".repeat(900), "v".repeat(70_000)));
    assert!(huge.1.unwrap().len() < 2_000);
}

#[test]
fn an_annotation_says_how_packets_are_forwarded() {
    let forward = |yaml: &str, value: &str| {
        let annotation = format!("annotations: {{nodelb.io/forward: {value}}}");
        let (service, notices) = service_of(&yaml.replace("labels: {app: x}", &annotation));
        (service.unwrap().forward, notices.join("\n"))
    };
    let same_port = INTRANET.replace("targetPort: 60002", "targetPort: 443");
    let named = INTRANET.replace("targetPort: 60002", "targetPort: https");
    for (value, expected) in [
        ("null", Forward::Translate),
        ("translate", Forward::Translate),
        ("direct", Forward::Direct),
        ("tunnel", Forward::Tunnel),
    ] {
        for yaml in [&same_port, &named] {
            assert_eq!(forward(yaml, value), (expected, String::new()));
        }
    }
    for wrong in ["Direct", "''", "\"\\e[31m\"", &"x".repeat(9_000)] {
        let (forward, notice) = forward(INTRANET, wrong);
        assert_eq!(forward, Forward::Translate);
        assert!(notice.contains("neither translate, direct nor tunnel") && notice.len() < 300, "{notice}");
        assert!(!notice.contains(char::is_control), "{notice:?}");
    }
    let (kind, notice) = forward(INTRANET, "direct");
    assert_eq!(kind, Forward::Direct);
    assert!(notice.contains("port `https` (443) is translated") && notice.contains("targetPort (60002)"), "{notice}");
    assert_eq!(forward(INTRANET, "tunnel"), (Forward::Tunnel, String::new()));

    let inside = same_port.replace("type: LoadBalancer", "type: NodePort").replace("- ip: 10.15.1.8", "");
    let inside = inside.replace("      ipMode: VIP\n", "").replace("ingress:", "ingress: []");
    assert!(forward(&inside, "direct").1.contains("has no effect without an externalIP"));
    let awaiting = inside.replace("type: NodePort", "type: LoadBalancer");
    assert_eq!(forward(&awaiting, "direct"), (Forward::Direct, String::new()));
}

#[test]
fn a_load_balancer_class_says_how_packets_are_forwarded_unless_the_annotation_does() {
    let forward = BTreeMap::from([("example.com/t".into(), Forward::Tunnel), ("d".into(), Forward::Direct)]);
    let mut reader = Reader { forward: Arc::new(forward), ..reader() };
    let mut forward = |class: &str, metadata: &str| {
        let yaml = INTRANET.replace("labels: {app: x}", metadata);
        let yaml = yaml.replace("type: LoadBalancer", &format!("type: LoadBalancer\n  loadBalancerClass: {class}"));
        let (service, notices) = service(&serde_saphyr::from_str(&yaml).unwrap(), &mut reader);
        (service.unwrap().forward, notices.join("\n"))
    };
    for other in ["null", "''", "t", "example.com/d"] {
        assert_eq!(forward(other, "labels: {}"), (Forward::Translate, String::new()), "{other}");
    }
    assert_eq!(forward("example.com/t", "annotations: {a: b}"), (Forward::Tunnel, String::new()));
    let (direct, notice) = forward("d", "annotations: null");
    assert!(direct == Forward::Direct && notice.starts_with("kubernetes.forward of d: port `https` (443)"), "{notice}");
    for (annotated, expected) in [("tunnel", Forward::Tunnel), ("translate", Forward::Translate)] {
        let annotations = format!("annotations: {{nodelb.io/forward: {annotated}}}");
        assert_eq!(forward("d", &annotations), (expected, String::new()));
    }
    let (wrong, notice) = forward("example.com/t", "annotations: {nodelb.io/forward: straight}");
    assert!(wrong == Forward::Translate && notice.contains("`straight` is neither"), "{notice}");
}

/// A small object may have thousands of addresses and of ports: their product would fill memory.
#[test]
fn the_product_of_addresses_and_ports_is_bounded() {
    let ports: String = (1..=5_000).map(|port| format!("\n  - {{name: p{port}, port: {port}}}")).collect();
    let ips: String = (0..5_000).map(|n| format!("\n  - 198.51.{}.{}", n / 250, n % 250 + 1)).collect();
    let (found, notices) = service_of(&format!(
        "metadata: {{name: web, namespace: shop}}\nspec:\n  clusterIP: 10.96.0.1\n  externalIPs:{ips}\n  ports:{ports}"
    ));
    let found = found.unwrap();
    let count: usize = found.ports.iter().map(|port| port.frontends.len()).sum();
    assert!((5_000..=MAX_FRONTENDS).contains(&count), "{count}");
    assert_eq!(found.ports[4_999].frontends[0].addr, "10.96.0.1".parse().unwrap());
    let expected =
        "4989 of its addresses are ignored, because it has more than 65536 pairs of address and port; divide it";
    assert_eq!(notices, [expected]);

    let endpoints: String =
        (0..1_000).map(|n| format!("\n- {{addresses: [10.1.{}.{}]}}", n / 250, n % 250 + 1)).collect();
    let (found, notices) = slice_of(&format!(
        "metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\n\
         endpoints:{endpoints}\nports:{}",
        ports.replace("\n  ", "\n")
    ));
    let count: usize = found.unwrap().ports.iter().map(|port| port.backends.len()).sum();
    assert_eq!(count, 262_000);
    let expected =
        "4738 of its ports are ignored, because it has more than 262144 pairs of endpoint and port; divide it";
    assert_eq!(notices, [expected]);
}
