use std::path::Path;

use nodelb_core::model::forward::Forward;
use nodelb_kube::api::scope::Selection;
use nodelb_sources::document::Problem;

use crate::config::Config;

fn problems(text: &str) -> Vec<String> {
    Config::parse(text).unwrap_err().iter().map(Problem::to_string).collect()
}

fn of_section(keys: &str) -> Vec<String> {
    problems(&format!("[kubernetes]\n{keys}\n"))
}

#[test]
fn without_kubernetes_there_are_no_settings() {
    assert_eq!(Config::default().kubernetes_settings(), None);
    let only_cidrs = Config::parse("[kubernetes]\nservice-cidrs = [\"10.96.0.0/12\"]\n").unwrap();
    assert_eq!(only_cidrs.kubernetes_settings(), None);
}

#[test]
fn settings_are_what_the_sections_say() {
    let text = r#"
        [kubernetes]
        token-file = "/run/token"
        ca-file = "/run/ca.pem"
        proxy = "http://[2001:db8::9]:3128/"
        [[kubernetes.apiserver]]
        address = "169.254.128.7:60002"
        tls-server-name = "kubernetes"
        [[kubernetes.apiserver]]
        address = "API.example.com:6443"
        [state]
        directory = "/srv/state"
    "#;
    let settings = Config::parse(text).unwrap().kubernetes_settings().unwrap();
    let servers: Vec<_> =
        settings.servers.iter().map(|server| (server.address.to_string(), server.tls_server_name.as_deref())).collect();
    let expected = [("169.254.128.7:60002".into(), Some("kubernetes")), ("api.example.com:6443".into(), None)];
    assert_eq!(servers, expected);
    assert_eq!(settings.kubeconfig, None);
    assert_eq!(settings.token_file.as_deref(), Some(Path::new("/run/token")));
    assert_eq!(settings.ca_file.as_deref(), Some(Path::new("/run/ca.pem")));
    assert_eq!(settings.proxy.as_deref(), Some("http://[2001:db8::9]:3128/"));
    assert_eq!(settings.state_directory, Path::new("/srv/state"));

    let kubeconfig = Config::parse("[kubernetes]\nkubeconfig = \"/etc/nodelb/kubeconfig\"\n").unwrap();
    assert!(kubeconfig.kubernetes_settings().unwrap().servers.is_empty());
}

#[test]
fn a_credential_is_a_file_that_systemd_hands_over() {
    let text = r#"
        [kubernetes]
        token-file = "credential:nodelb.token"
        ca-file = "/etc/ca.pem"
        apiserver = [{ address = "192.0.2.1:6443" }]
    "#;
    let settings = Config::parse(text).unwrap().kubernetes_settings().unwrap();
    let token = settings.token_file.unwrap();
    assert!(token.is_absolute() && token.ends_with("nodelb.token"), "{}", token.display());
    assert_eq!(settings.ca_file.as_deref(), Some(Path::new("/etc/ca.pem")));
}

#[test]
fn an_apiserver_says_where_it_is_and_nothing_unknown() {
    let text = r#"[kubernetes]
kubeconfig = "/k"
[[kubernetes.apiserver]]
tls-server-name = "kubernetes"
[[kubernetes.apiserver]]
address = "192.0.2.1"
[[kubernetes.apiserver]]
address = "192.0.2.1:6443"
tls_server_name = "a"
[[kubernetes.apiserver]]
address = 6443
tls-server-name = "not a name"
"#;
    let expected = [
        "line 3: kubernetes.apiserver: has no address; add address = \"ADDRESS:PORT\"",
        "line 6: kubernetes.apiserver.address: `192.0.2.1` is not an apiserver address (expected HOST:PORT, such as \
         192.0.2.1:6443 or api.example.com:6443)",
        "line 9: unknown key `kubernetes.apiserver.tls_server_name`; did you mean `tls-server-name`?",
        "line 11: kubernetes.apiserver.address: expected a string, found an integer",
        "line 12: kubernetes.apiserver.tls-server-name: `not a name` is not a valid name in a certificate",
    ];
    assert_eq!(problems(text), expected);
    let wrong_form =
        "line 2: kubernetes.apiserver: expected a table such as { address = \"192.0.2.1:6443\" }, found a string";
    assert_eq!(of_section("apiserver = [\"192.0.2.1:6443\"]"), [wrong_form]);
}

#[test]
fn keys_that_do_not_go_together_are_refused_with_the_remedy() {
    let cases = [
        (
            "kubeconfig = \"/k\"\ntoken-file = \"/t\"",
            "line 3: kubernetes.token-file: kubeconfig has the credentials already; leave out one of the two",
        ),
        (
            "kubeconfig = \"/k\"\nca-file = \"/t\"",
            "line 3: kubernetes.ca-file: kubeconfig has the credentials already; leave out one of the two",
        ),
        (
            "apiserver = [{ address = \"192.0.2.1:6443\" }]",
            "line 2: kubernetes.apiserver: credentials are missing; set kubeconfig, or token-file and ca-file",
        ),
        (
            "token-file = \"/t\"\napiserver = [{ address = \"192.0.2.1:6443\" }]",
            "line 2: kubernetes.token-file: needs ca-file too, so that the token is sent only to a server that is verified",
        ),
        (
            "ca-file = \"/t\"\napiserver = [{ address = \"192.0.2.1:6443\" }]",
            "line 2: kubernetes.ca-file: needs token-file too: an apiserver requires credentials",
        ),
        (
            "token-file = \"/t\"\nca-file = \"/c\"",
            "line 2: kubernetes.token-file: no apiserver is configured for it; set apiserver = [{ address = \"HOST:PORT\" }], \
             or use kubeconfig",
        ),
        (
            "kubeconfig = \"/k\"\napiserver = [{ address = \"a:1\" }, { address = \"A:1\" }]",
            "line 3: kubernetes.apiserver: a:1 is listed twice; remove one",
        ),
        (
            "kubeconfig = \"/k\"\nservice-cidrs = [\"10.96.0.0/12\"]\napiserver = [{ address = \"10.96.0.1:443\" }]",
            "line 4: kubernetes.apiserver: 10.96.0.1:443 is a service address (it lies in 10.96.0.0/12), and nodelb \
             never translates its own connections; write an address the apiserver itself listens on",
        ),
        (
            "kubeconfig = \"/k\"\nproxy = \"http://bob:hunter2@192.0.2.9:3128\"",
            "line 3: kubernetes.proxy: `http://…@192.0.2.9:3128` is not an HTTP proxy (expected http://HOST:PORT, such as \
             http://192.0.2.9:3128)",
        ),
        (
            "kubeconfig = \"/k\"\nproxy = \"socks5://192.0.2.9:1080\"",
            "line 3: kubernetes.proxy: `socks5://192.0.2.9:1080` is not an HTTP proxy (expected http://HOST:PORT, such \
             as http://192.0.2.9:3128)",
        ),
        (
            "healthz-addresses = [\"0.0.0.0:0\"]",
            "line 2: kubernetes.healthz-addresses: 0.0.0.0:0 has port 0; choose one, so that load balancers can find it",
        ),
        (
            "healthz-addresses = [\"[ff02::1]:10256\"]",
            "line 2: kubernetes.healthz-addresses: [ff02::1]:10256 is a multicast address, at which no program can \
             listen; use [::] or an address of the node",
        ),
        (
            "healthz-addresses = [\"[::]:1\", \"0.0.0.0:1\", \"[::]:1\"]",
            "line 2: kubernetes.healthz-addresses: [::]:1 is listed twice; remove one",
        ),
        ("kubeconfig = \"k\"", "line 2: kubernetes.kubeconfig: `k` must be an absolute path, or credential:NAME"),
        (
            "kubeconfig = \"credential:../shadow\"",
            "line 2: kubernetes.kubeconfig: `credential:../shadow` names no credential: letters, digits, `-`, `_` and `.`, at \
             most 255 of them",
        ),
    ];
    for (keys, expected) in cases {
        assert_eq!(of_section(keys), [expected], "{keys}");
    }
}

#[test]
fn selections_that_cannot_be_used_are_refused_with_the_remedy() {
    let cases = [
        (
            "label-selector = \"team=shop,tier\\r\\nx\"",
            "line 2: kubernetes.label-selector: `tier\\r\\nx` is not a requirement of a label selector; correct it, or leave \
             the key out (expected like team=shop, tier!=test or !team)",
        ),
        (
            "namespaces = [\"shop\", \"../kube-system\"]",
            "line 2: kubernetes.namespaces: `../kube-system` is not the name of a namespace: lower-case letters, digits and \
             `-`, at most 63 of them; correct it",
        ),
        ("namespaces = [\"a\", \"b\", \"a\"]", "line 2: kubernetes.namespaces: a is listed twice; remove one"),
        (
            "services = [\"default/kubernetes\", \"kubernetes\"]",
            "line 2: kubernetes.services: `kubernetes` is not a Service; correct it (expected like default/kubernetes)",
        ),
        (
            "services = [\"shop/Web\"]",
            "line 2: kubernetes.services: `Web` is not the name of a Service: lower-case letters, digits and `-`, at most 63 of \
             them; correct it",
        ),
        ("services = [\"a/b\", \"a/b\"]", "line 2: kubernetes.services: a/b is listed twice; remove one"),
        (
            "services = [\"a/b\"]\nnamespaces = [\"a\"]",
            "line 3: kubernetes.namespaces: kubernetes.services already names each Service; leave out kubernetes.namespaces \
             or kubernetes.services",
        ),
        (
            "label-selector = \"a=b\"\nservices = [\"a/b\"]",
            "line 2: kubernetes.label-selector: kubernetes.services already names each Service; leave out \
             kubernetes.label-selector or kubernetes.services",
        ),
    ];
    for (keys, expected) in cases {
        assert_eq!(of_section(keys), [expected], "{keys}");
    }
}

#[test]
fn services_are_selected_by_labels_namespaces_or_names() {
    let selection = |keys: &str| Config::parse(&format!("[kubernetes]\n{keys}\n")).unwrap().kubernetes.selection();
    assert_eq!(selection(""), Selection::default());
    let of_team = selection("label-selector = \" team in (shop, pay) \"\nnamespaces = [\"shop\", \"default\"]");
    assert_eq!((&*of_team.labels, of_team.namespaces), ("team in (shop, pay)", vec!["shop".into(), "default".into()]));
    let apiservers = selection("services = [\"default/kubernetes\"]");
    assert_eq!(apiservers.services, ["default/kubernetes".parse().unwrap()]);
    let many: Vec<String> = (0..33).map(|number| format!("\"n{number}\"")).collect();
    let expected = "line 2: kubernetes.namespaces: more than 32 entries (33): each is watched on its own; remove some, or \
                    leave the key out to read the whole cluster";
    assert_eq!(of_section(&format!("namespaces = [{}]", many.join(", "))), [expected]);
    assert_eq!(selection(&format!("namespaces = [{}]", many[..32].join(", "))).namespaces.len(), 32);
}

#[test]
fn a_load_balancer_class_has_a_way_to_forward() {
    let classes = "{ \"example.com/tunnel\" = \"tunnel\", internal = \"direct\", old = \"translate\" }";
    let config = Config::parse(&format!("[kubernetes]\nforward = {classes}\n")).unwrap();
    let forward = &config.kubernetes.forward;
    let expected =
        [("example.com/tunnel", Forward::Tunnel), ("internal", Forward::Direct), ("old", Forward::Translate)];
    assert_eq!(forward.iter().map(|(class, forward)| (&**class, *forward)).collect::<Vec<_>>(), expected);
    assert_eq!(Config::parse(&config.to_toml()).as_ref(), Ok(&config));
    assert_eq!(Config::default().restart_keys(&config), ["kubernetes.forward"]);
    let as_table = Config::parse(&format!("[kubernetes.forward]\n{}", classes[1..].replace([',', '}'], "\n")));
    assert_eq!(as_table, Ok(config));

    let form = "line 2: kubernetes.forward: expected a table such as { \"example.com/tunnel\" = \"tunnel\" }, found";
    let value = "line 2: kubernetes.forward.a.example/b:";
    let choices = "is not one of the choices (expected \"translate\", \"direct\" or \"tunnel\")";
    let class = "is not a load balancer class; correct it (expected like example.com/tunnel)";
    let cases = [
        ("\"tunnel\"", format!("{form} a string")),
        ("[\"a\"]", format!("{form} an array")),
        ("{ \"a.example/b\" = \"Tunnel\" }", format!("{value} `Tunnel` {choices}")),
        ("{ \"a.example/b\" = 4 }", format!("{value} expected a string")),
        ("{ \"\" = \"tunnel\" }", format!("line 2: kubernetes.forward: `` {class}")),
        ("{ \"a\\u001b/b\" = \"tunnel\" }", format!("line 2: kubernetes.forward: `a\\u{{1b}}/b` {class}")),
    ];
    for (value, expected) in cases {
        assert_eq!(of_section(&format!("forward = {value}")), [expected], "{value}");
    }
}

#[test]
fn load_balancers_are_answered_only_where_there_is_a_cluster() {
    let addresses = |keys: &str| {
        let config = Config::parse(&format!("[kubernetes]\n{keys}\n")).unwrap();
        config.healthz_addresses().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(addresses(""), [""; 0]);
    assert_eq!(addresses("healthz-addresses = [\"192.0.2.1:10256\"]"), [""; 0]);
    assert_eq!(addresses("kubeconfig = \"/k\""), ["[::]:10256"]);
    assert_eq!(addresses("kubeconfig = \"/k\"\nhealthz-addresses = [\"192.0.2.1:10256\"]"), ["192.0.2.1:10256"]);
    assert_eq!(addresses("kubeconfig = \"/k\"\nhealthz-addresses = []"), [""; 0]);
}
