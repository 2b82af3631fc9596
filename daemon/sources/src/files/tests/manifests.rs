use super::*;

fn read_text(text: &str) -> Result<FileContent, Vec<Problem>> {
    read(text, &"all.yaml".into())
}

fn names(text: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
    let content = read_text(text).unwrap();
    let services = content.services.iter().map(|found| found.value.name.to_string()).collect();
    let slices = content.slices.iter().map(|found| found.value.name.to_string()).collect();
    (services, slices, content.notices)
}

fn problems(text: &str) -> Vec<String> {
    read_text(text).unwrap_err().iter().map(Problem::to_string).collect()
}

/// The output of `kubectl get services,endpointslices -A -o yaml`, reduced to one object of each kind.
const KUBECTL: &str = r#"apiVersion: v1
items:
- apiVersion: v1
  kind: Service
  metadata:
    annotations:
      kubectl.kubernetes.io/last-applied-configuration: |
        {"apiVersion":"v1","kind":"Service","metadata":{"name":"web"}}
    creationTimestamp: "2024-05-01T12:34:56Z"
    name: web
    namespace: shop
    resourceVersion: "1001"
    uid: 5d0c8b1c-0001-4000-8000-000000000001
  spec:
    clusterIP: 10.96.7.7
    clusterIPs:
    - 10.96.7.7
    internalTrafficPolicy: Cluster
    ipFamilies:
    - IPv4
    ipFamilyPolicy: SingleStack
    ports:
    - name: http
      port: 80
      protocol: TCP
      targetPort: http
    selector:
      app: web
    sessionAffinity: None
    type: ClusterIP
  status:
    loadBalancer: {}
- addressType: IPv4
  apiVersion: discovery.k8s.io/v1
  endpoints:
  - addresses:
    - 10.1.0.1
    conditions:
      ready: true
      serving: true
      terminating: false
    nodeName: node-1
    targetRef:
      kind: Pod
      name: web-1
      namespace: shop
  kind: EndpointSlice
  metadata:
    labels:
      endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io
      kubernetes.io/service-name: web
    name: web-abc12
    namespace: shop
    ownerReferences:
    - apiVersion: v1
      blockOwnerDeletion: true
      kind: Service
      name: web
    resourceVersion: "1002"
  ports:
  - name: http
    port: 8080
    protocol: TCP
kind: List
metadata:
  resourceVersion: ""
"#;

#[test]
fn what_kubectl_prints_is_read_as_it_is() {
    let content = read_text(KUBECTL).unwrap();
    assert_eq!(content.notices, [""; 0]);
    let (service, slice) = (&content.services[0], &content.slices[0]);
    assert_eq!((service.line, slice.line), (Some(3), Some(33)));
    assert_eq!(service.value.name, ServiceName::new("shop", "web"));
    assert_eq!(service.value.created, Some(1_714_566_896));
    assert_eq!(service.value.source, Source::Files);
    assert_eq!(&*service.value.origin.object, "all.yaml");
    assert_eq!(&*service.value.origin.resource_version, "1001");
    assert_eq!(slice.value.service, ServiceName::new("shop", "web"));
    assert_eq!(slice.value.ports[0].backends[0].node.as_deref(), Some("node-1"));
}

#[test]
fn the_same_as_json() {
    let yaml: serde_json::Value = serde_saphyr::from_str(KUBECTL).unwrap();
    let pretty = serde_json::to_string_pretty(&yaml).unwrap();
    let mut from_json = read_text(&pretty).unwrap();
    let from_yaml = read_text(KUBECTL).unwrap();
    from_json.services[0].line = from_yaml.services[0].line;
    from_json.slices[0].line = from_yaml.slices[0].line;
    assert_eq!(from_json, from_yaml);
    assert!(read_text(&pretty.replace("  ", "\t")).is_ok());
    assert!(read_text(&serde_json::to_string(&yaml).unwrap()).is_ok());
}

#[test]
fn typed_lists_need_not_say_what_their_items_are() {
    let services = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[
        {"metadata":{"name":"a","namespace":"x"},"spec":{"clusterIP":"10.96.0.1"}}]}"#;
    assert_eq!(names(services).0, ["x/a"]);
    let slices = "
items:
- metadata: {name: a, namespace: x, labels: {kubernetes.io/service-name: a}}
  addressType: IPv4
kind: EndpointSliceList
apiVersion: discovery.k8s.io/v1
";
    assert_eq!(names(slices).1, ["x/a"]);
}

#[test]
fn many_documents_and_lists_in_lists() {
    let text = "
---
# nothing here
---
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {clusterIP: 10.96.0.1}
---
kind: Service
apiVersion: v1
spec: {clusterIP: 10.96.0.2}
metadata: {name: b, namespace: x}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: c}, spec: {clusterIP: 10.96.0.3}}]}
...
";
    assert_eq!(names(text).0, ["default/a", "x/b", "default/c"]);
    assert_eq!(read_text(""), Ok(FileContent::default()));
    assert_eq!(read_text("# nothing\n---\nnull\n"), Ok(FileContent::default()));
    assert_eq!(read_text("{apiVersion: v1, kind: List, items: null}"), Ok(FileContent::default()));
}

#[test]
fn other_kinds_are_skipped_and_counted_whatever_they_hold() {
    let text = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: 5, status: [1], ports: x, endpoints: {}, items: 3}
- {apiVersion: v1, kind: Pod}
- {apiVersion: apps/v1, kind: Deployment, metadata: 7}
- {apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: k}, spec: {template: {}, ports: 4}}
- {apiVersion: v1, kind: Endpoints, subsets: []}
- {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1}}
";
    let (services, _, notices) = names(text);
    assert_eq!(services, ["default/a"]);
    assert_eq!(notices, ["5 objects of other kinds are skipped: 1 Deployment, 1 Endpoints, 2 Pod, 1 Service"]);
    assert_eq!(names("{apiVersion: v1, kind: Pod}").2, ["1 object of another kind is skipped: 1 Pod"]);
}

#[test]
fn skipped_objects_are_reported() {
    let (services, slices, notices) = names(
        "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: x}, spec: {clusterIP: None}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: b, namespace: x}, addressType: IPv4}
",
    );
    assert_eq!((services.len(), slices.len()), (0, 0));
    assert_eq!(notices[0], "Service x/a: headless (clusterIP None); left out");
    assert!(notices[1].starts_with("EndpointSlice x/b: no label kubernetes.io/service-name"));
}

#[test]
fn each_document_tells_its_first_problem_with_the_line() {
    let text = "apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  clusterIP: 10.96.0.1
  ports:
  - port: eighty
---
apiVersion: v1
kind: Service
metadata: {namespace: x}
---
apiVersion: v1
metadata: {name: a}
---
apiVersion: v1
kind: Service
metadata: {name: a/b}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a}
endpoints:
- addresses: 10.0.0.1
---
hello
---
apiVersion: v1
kind: List
items: [5]
";
    let found = problems(text);
    assert_eq!(found[0], "line 7: not readable as a Kubernetes object: invalid u16");
    assert_eq!(found[1], "line 9: Service without a name; add metadata.name");
    assert_eq!(found[2], "line 13: an object without a kind; add kind: Service or kind: EndpointSlice");
    assert!(found[3].starts_with("line 16: Service `default/a/b` is not named as Kubernetes allows"), "{found:?}");
    assert!(found[4].starts_with("line 24: not readable"), "{found:?}");
    assert!(found[5].starts_with("line 26: not readable"), "{found:?}");
    assert!(found[6].starts_with("line 30: not readable"), "{found:?}");
    assert_eq!(found.len(), 7);
}

#[test]
fn broken_syntax_is_a_problem_with_a_line() {
    for text in
        ["a: [", "a: b: c", "{\"a\": 1", "\t- a", "a: *unknown", "\"", "kind: Service\n  apiVersion: v1\n", "\u{0}"]
    {
        let found = problems(text);
        assert!(found[0].starts_with("line "), "{text:?}: {found:?}");
        assert!(!found[0].contains(" at line "), "{found:?}");
    }
}

#[test]
fn bombs_are_refused_quickly() {
    let began = std::time::Instant::now();
    let mut laughs = String::from("apiVersion: v1\nkind: List\na: &a [x,x,x,x,x,x,x,x,x]\n");
    for (from, to) in ('a'..'l').zip('b'..='l') {
        laughs.push_str(&format!("{to}: &{to} [{}]\n", vec![format!("*{from}"); 9].join(",")));
    }
    laughs.push_str("items: *l\n");
    assert!(read_text(&laughs).is_err());
    assert!(read_text(&"[".repeat(1 << 20)).is_err());
    assert!(read_text(&"{a: ".repeat(1 << 18)).is_err());
    assert!(read_text(&"- ".repeat(1 << 18)).is_err());
    assert!(read_text(&(0..2000).map(|depth| " ".repeat(depth) + "a:\n").collect::<String>()).is_err());
    assert!(read_text(&"---\nx\n".repeat(MAX_DOCUMENTS + 1)).is_err());
    let nested = "{apiVersion: v1, kind: List, items: [".repeat(30);
    assert!(read_text(&nested).is_err());
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_list_that_is_too_long_is_refused() {
    let endpoints = "{},".repeat(20_000);
    let text = format!("{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, endpoints: [{endpoints}]}}");
    assert!(problems(&text)[0].contains("a list of more than 10000 items"), "{:?}", problems(&text));
}

#[test]
fn a_small_file_cannot_stand_for_any_number_of_backends() {
    let endpoints = "{addresses: ['::1']},".repeat(10_000);
    let ports: String = (0..10_000).map(|i| format!("{{name: p{i}, port: 80}},")).collect();
    let metadata = "metadata: {name: a, labels: {kubernetes.io/service-name: a}}";
    let slice = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv6, {metadata}, endpoints: [{endpoints}], ports: [{ports}]}}"
    );
    assert_eq!(problems(&slice), ["line 1: more than 4000000 frontends and backends in one file; split it"]);
    let external = "'198.51.100.1',".repeat(10_000);
    let service = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: a}}, spec: {{clusterIP: 10.96.0.1, externalIPs: [{external}], ports: [{ports}]}}}}"
    );
    assert_eq!(problems(&service), ["line 1: more than 4000000 frontends and backends in one file; split it"]);
}

#[test]
fn floods_of_notices_and_problems_are_cut() {
    let headless =
        |i| format!("- {{apiVersion: v1, kind: Service, metadata: {{name: s{i}}}, spec: {{clusterIP: None}}}}\n");
    let items: String = (0..1000).map(headless).collect();
    let notices = names(&format!("apiVersion: v1\nkind: List\nitems:\n{items}")).2;
    assert_eq!(notices.len(), MAX_MESSAGES + 1);
    assert_eq!(notices[MAX_MESSAGES], "900 more notices");
    let kinds: String = (0..1000).map(|i| format!("- {{kind: K{i}}}\n")).collect();
    let notices = names(&format!("apiVersion: v1\nkind: List\nitems:\n{kinds}")).2;
    assert!(notices[0].len() < 300, "{notices:?}");
    let nameless: String = "- {apiVersion: v1, kind: Service}\n".repeat(1000);
    assert_eq!(problems(&format!("apiVersion: v1\nkind: List\nitems:\n{nameless}")).len(), MAX_MESSAGES);
}
