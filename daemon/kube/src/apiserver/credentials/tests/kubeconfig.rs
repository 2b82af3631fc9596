use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const PATH: &str = "/etc/nodelb/kubeconfig";

/// A kubeconfig with these fields in its cluster and user, one per line.
fn kubeconfig(cluster: &str, user: &str) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\npreferences: {{}}\n\
         contexts:\n- name: here\n  context:\n    cluster: c\n    user: u\n    namespace: default\n\
         clusters:\n- name: c\n  cluster:\n{}users:\n- name: u\n  user:\n{}",
        indented(cluster),
        indented(user)
    )
}

const CLUSTER: &str = "server: https://192.0.2.1:6443\ncertificate-authority: pki/ca.crt";

fn read(text: &str) -> Result<Kubeconfig, String> {
    parse(text, Path::new(PATH)).map_err(|error| error.to_string())
}

#[test]
fn files_are_relative_to_the_kubeconfig() {
    let user =
        "client-certificate: /var/lib/kubelet/pki/current.pem\nclient-key: key.pem\ntokenFile: token\ntoken: old";
    let found = read(&kubeconfig(&format!("{CLUSTER}\ntls-server-name: kubernetes"), user)).unwrap();
    assert_eq!(found.server.address, "192.0.2.1:6443".parse().unwrap());
    assert_eq!(found.server.tls_server_name.as_deref(), Some("kubernetes"));
    assert_eq!(found.authority, Part::File("/etc/nodelb/pki/ca.crt".into()));
    let (certificate, key) = found.certificate.unwrap();
    assert_eq!(certificate, Part::File("/var/lib/kubelet/pki/current.pem".into()));
    assert_eq!(key, Part::File("/etc/nodelb/key.pem".into()));
    assert_eq!(found.token, Some(Part::File("/etc/nodelb/token".into())), "the file wins");
    assert!(found.notices.is_empty() && found.plugin.is_none());
}

#[test]
fn data_wins_over_files_and_is_not_shown() {
    let cluster = format!("{CLUSTER}\ncertificate-authority-data: Y2E=");
    let user = "client-certificate-data: Y2VydA==\nclient-key-data: |\n  c2Vj\n  cmV0\ntoken: secret";
    let found = read(&kubeconfig(&cluster, user)).unwrap();
    let inline = |content: &str, origin: &str| Part::Inline(Secret(content.into()), format!("{origin} in {PATH}"));
    assert_eq!(found.authority, inline("ca", "certificate-authority-data of cluster `c`"));
    let expected =
        (inline("cert", "client-certificate-data of user `u`"), inline("secret", "client-key-data of user `u`"));
    assert_eq!(found.certificate.as_ref(), Some(&expected));
    assert_eq!(found.token, Some(inline("secret", "token of user `u`")));
    assert!(!format!("{found:?}").contains("115, 101, 99"), "{found:?}");
}

#[test]
fn a_user_without_credentials_is_noted() {
    let found = read(&kubeconfig(CLUSTER, "{}")).unwrap();
    let [notice] = &found.notices[..] else { panic!("{:?}", found.notices) };
    assert!(
        notice.starts_with(&format!("{PATH}: user `u` has no client certificate, no token and no exec")),
        "{notice}"
    );
}

#[test]
fn an_exec_plugin_is_found_as_kubectl_finds_it() {
    let user = "exec:\n  apiVersion: client.authentication.k8s.io/v1beta1\n  command: bin/login\n  args: [-x, 7]\n  \
                env:\n  - {name: A, value: b}\n  interactiveMode: IfAvailable\n  provideClusterInfo: true\n  \
                installHint: ask me";
    let plugin = read(&kubeconfig(CLUSTER, user)).unwrap().plugin.unwrap();
    let expected = Plugin {
        command: "/etc/nodelb/bin/login".into(),
        args: vec!["-x".into(), "7".into()],
        env: vec![("A".into(), Secret(b"b".to_vec()))],
        version: "client.authentication.k8s.io/v1beta1",
        install_hint: Some("ask me".into()),
        cluster: Some(ClusterInfo { server: "https://192.0.2.1:6443".into(), tls_server_name: None, config: None }),
    };
    assert_eq!(plugin, expected);
    let user = "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, args: null, env: null}";
    let plugin = read(&kubeconfig(CLUSTER, user)).unwrap().plugin.unwrap();
    assert_eq!((plugin.command, plugin.cluster), ("aws".into(), None), "from PATH");
}

#[test]
fn an_exec_plugin_gets_the_clusters_extension_for_it_and_no_other() {
    let others = "extensions:\n- name: minikube\n  extension: {last-update: 'Mon, 1 Jan', 1: 2, version: v1.36.0}\n\
                  - name: empty\n  extension: null\n";
    let own =
        "- name: client.authentication.k8s.io/exec\n  extension:\n    audience: x\n    deep: [{a: 1, b: null}, yes]\n";
    let user = |provided: bool| {
        format!("exec: {{apiVersion: client.authentication.k8s.io/v1, command: aws, provideClusterInfo: {provided}}}")
    };
    let config = |cluster: &str, provided: bool| {
        let found = read(&kubeconfig(&format!("{CLUSTER}\n{cluster}"), &user(provided))).unwrap();
        found.plugin.unwrap().cluster.map(|cluster| cluster.config)
    };
    assert_eq!(config("", true), Some(None));
    assert_eq!(config(others, true), Some(None));
    let expected = serde_json::json!({"audience": "x", "deep": [{"a": 1, "b": null}, "yes"]});
    let found = config(&format!("{others}{own}"), true).flatten().unwrap();
    assert_eq!((&found["audience"], &found["deep"][0]), (&expected["audience"], &expected["deep"][0]));
    assert_eq!(config(&format!("{others}{own}"), false), None, "it did not ask");
    assert_eq!(config("extensions: null", true), Some(None));
}

/// nodelb would otherwise ask in the name of the credentials.
#[test]
fn another_users_name_is_refused() {
    let found = |user: &str| read(&kubeconfig(CLUSTER, user)).map(drop);
    for none in ["token: a", "token: a\nas: ''\nas-groups: null\nas-user-extra: {}"] {
        found(none).unwrap();
    }
    for asked in ["as: nodelb", "as-uid: '7'", "as-groups: [g]", "as-user-extra: {a: [b]}"] {
        let error = found(&format!("token: a\n{asked}")).unwrap_err();
        assert!(error.contains("user `u` has `as` or `as-…`: nodelb acts in no other user's name"), "{error}");
    }
}

proptest! {
    /// Accepts the same URLs as kubectl, and never prints the userinfo.
    #[test]
    fn servers_are_taken_as_kubectl_takes_them(
        scheme in select(&["https://", "HTTPS://", "Https://", "http://", "HTTP://", ""][..]),
        userinfo in select(&["", "", "", "bob:QZSECRETQZ@", "QZSECRETQZ@", "bob:QZSECRETQZ/x@"][..]),
        host in select(&["192.0.2.1", "[2001:db8::1]", "api.example.com", "API.Example.com", "api.example.com.", "api_1", "a-b_c.d."][..]),
        port in select(&["", ":6443", ":443"][..]),
        path in select(&["", "/", "/k8s/clusters/c-1"][..]),
    ) {
        let url = format!("{scheme}{userinfo}{host}{port}{path}");
        let is_good = scheme.eq_ignore_ascii_case("https://") && userinfo.is_empty() && path.len() < 2;
        match server_address(&url) {
            Ok(address) => {
                let port = if port.is_empty() { ":443" } else { port };
                prop_assert!(is_good, "{url}");
                prop_assert_eq!(address.to_string(), format!("{host}{port}").to_lowercase());
            }
            Err(error) => {
                prop_assert!(!is_good, "{}: {}", url, error);
                prop_assert!(!error.contains("QZSECRETQZ"), "{}", error);
            }
        }
        let proxied = read(&kubeconfig(&format!("{CLUSTER}\nproxy-url: '{url}'"), "token: a"));
        prop_assert!(!format!("{proxied:?}").contains("QZSECRETQZ"), "{proxied:?}");
    }
}

#[test]
fn servers_are_what_nodelb_can_connect_to() {
    let cases = [
        ("https://api.example.com", Ok("api.example.com:443")),
        ("https://api.example.com:6443/", Ok("api.example.com:6443")),
        ("https://[2001:db8::1]:6443", Ok("[2001:db8::1]:6443")),
        ("https://[2001:db8::1]", Ok("[2001:db8::1]:443")),
        ("https://192.0.2.1", Ok("192.0.2.1:443")),
        ("http://192.0.2.1:8080", Err("does not begin with https://")),
        ("192.0.2.1:6443", Err("does not begin with https://")),
        ("https://rancher.example.com/k8s/clusters/c-1", Err("has a path")),
        ("https://user@192.0.2.1", Err("is not https://HOST:PORT")),
        ("https://192.0.2.1:0", Err("is not https://HOST:PORT")),
        ("https://", Err("is not https://HOST:PORT")),
        ("https://0.0.0.0:6443", Err("it is the unspecified address")),
        ("https://[fe80::1]", Err("it is IPv6 link-local")),
        ("", Err("is not set")),
    ];
    for (url, expected) in cases {
        match (server_address(url), expected) {
            (Ok(address), Ok(expected)) => assert_eq!(address.to_string(), expected, "{url}"),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{url}: {error}"),
            (found, _) => panic!("{url}: {found:?}"),
        }
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let cases = [
        ("insecure-skip-tls-verify: true", "", "cluster `c` has insecure-skip-tls-verify"),
        ("certificate-authority-data: '%%%'", "", "certificate-authority-data of cluster `c` is not base64"),
        ("", "username: admin", "user `u` has username"),
        ("", "password: secret", "user `u` has password"),
        ("", "auth-provider: {name: gcp}", "user `u` has auth-provider"),
        ("", "client-certificate: a.pem", "has a client-certificate, but no client-key"),
        ("", "client-key: a.pem", "has a client-key, but no client-certificate"),
        ("", "exec: {command: a, apiVersion: client.authentication.k8s.io/v1alpha1}", "v1alpha1`; client.auth"),
        ("", "exec: {apiVersion: client.authentication.k8s.io/v1}", "exec of user `u` has no command"),
        ("", "token: a\nexec: {command: a}", "has both exec and a token"),
        (
            "",
            "exec: {command: a, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}",
            "interactiveMode Always",
        ),
    ];
    for (cluster, user, expected) in cases {
        let error = read(&kubeconfig(&format!("{CLUSTER}\n{cluster}"), user)).unwrap_err();
        assert!(error.starts_with("kubeconfig /etc/nodelb/kubeconfig: ") && error.contains(expected), "{error}");
    }
    let error = read(&kubeconfig("server: https://192.0.2.1", "")).unwrap_err();
    assert!(error.contains("cluster `c` has no certificate-authority"), "{error}");
}

#[test]
fn a_proxy_is_ignored_aloud() {
    let found = read(&kubeconfig(&format!("{CLUSTER}\nproxy-url: http://proxy:3128"), "token: a")).unwrap();
    assert_eq!(found.notices.len(), 1);
    assert!(found.notices[0].contains("proxy-url http://proxy:3128, which nodelb ignores"), "{:?}", found.notices);
}

#[test]
fn broken_files_say_where_and_quote_nothing() {
    let whole = kubeconfig(CLUSTER, "token: a");
    let cases = [
        (String::new(), "current-context is not set"),
        ("null".into(), "current-context is not set"),
        ("[]".into(), "not readable as a kubeconfig"),
        ("users: verysecret".into(), "not readable as a kubeconfig at line 1"),
        (kubeconfig(CLUSTER, "token: {verysecret: a}"), "not readable as a kubeconfig at line"),
        (whole.replace("current-context: here", "current-context: there"), "there is no context `there`"),
        (whole.replace("- name: c\n", "- name: d\n"), "there is no cluster `c`"),
        (whole.replace("- name: u\n", "- name: v\n"), "there is no user `u`"),
        (format!("{whole}- name: u\n  user: {{}}\n"), "two users are named `u`"),
    ];
    for (text, expected) in cases {
        let error = read(&text).unwrap_err();
        assert!(error.contains(expected) && !error.contains("verysecret"), "{error}");
    }
}
