use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A plugin that runs a shell script.
fn script(text: &str) -> Plugin {
    Plugin {
        command: "/bin/sh".into(),
        args: vec!["-c".into(), text.into()],
        env: vec![("GREETING".into(), Secret(b"hello".to_vec()))],
        version: "client.authentication.k8s.io/v1",
        install_hint: None,
        cluster: None,
    }
}

fn printing(status: &str) -> Plugin {
    script(&format!(
        r#"echo '{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{status}}}'"#
    ))
}

async fn failure(plugin: &Plugin) -> String {
    plugin.run(b"ca", TIMEOUT).await.unwrap_err().to_string()
}

#[tokio::test]
async fn what_a_plugin_prints_is_taken() {
    let plugin = printing(r#"{"token":"abc","expirationTimestamp":"1970-01-01T01:00:00+00:00"}"#);
    let found = plugin.run(b"ca", TIMEOUT).await.unwrap();
    assert_eq!(found.token, Some(Secret(b"abc".to_vec())));
    assert_eq!(found.expires, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(3600)));
    let found =
        printing(r#"{"clientCertificateData":"cert","clientKeyData":"key"}"#).run(b"ca", TIMEOUT).await.unwrap();
    assert_eq!(found.certificate, Some((b"cert".to_vec(), Secret(b"key".to_vec()))));
    assert!(!format!("{found:?}").contains("107, 101, 121"), "the key is not shown");
}

#[tokio::test]
async fn a_plugin_receives_what_it_needs() {
    let mut plugin = script(
        r#"printf '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","status":{"token":"%s %s"}}' \
           "$GREETING" "$(printf %s "$KUBERNETES_EXEC_INFO" | base64 -w0)""#,
    );
    plugin.version = "client.authentication.k8s.io/v1beta1";
    plugin.cluster = Some(ClusterInfo {
        server: "https://192.0.2.1:6443".into(),
        tls_server_name: Some("kubernetes".into()),
        config: Some(serde_json::json!({"audience": "x", "depth": [1, null]})),
    });
    let token = plugin.run(b"ca", TIMEOUT).await.unwrap().token.unwrap();
    let text = String::from_utf8(token.0).unwrap();
    let info = STANDARD.decode(text.strip_prefix("hello ").unwrap()).unwrap();
    let expected = serde_json::json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "spec": {"interactive": false, "cluster": {
            "server": "https://192.0.2.1:6443", "tls-server-name": "kubernetes", "certificate-authority-data": "Y2E=",
            "config": {"audience": "x", "depth": [1, null]}
        }},
    });
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&info).unwrap(), expected);
}

#[tokio::test]
async fn plugins_that_print_something_else_are_refused_without_quoting_it() {
    let cases = [
        (script("echo topsecret"), "did not print an ExecCredential (line 1"),
        (script(r#"echo '{"kind":"Secret","apiVersion":"v1"}'"#), "correct apiVersion"),
        (printing("null"), "printed no status"),
        (printing("{}"), "neither a token nor a client certificate"),
        (printing(r#"{"clientKeyData":"topsecret"}"#), "only one of"),
        (printing(r#"{"token":"topsecret","expirationTimestamp":"soon"}"#), "not RFC 3339"),
        (script("head -c 300000 /dev/zero"), "printed more than"),
        (script("head -c 300000 /dev/zero >&2; echo; echo 'please log in' >&2; exit 3"), "exit status: 3"),
        (script("echo first >&2; echo 'please log in' >&2; exit 3"), "please log in"),
    ];
    for (plugin, expected) in cases {
        let error = failure(&plugin).await;
        assert!(error.starts_with("exec plugin /bin/sh ") && error.contains(expected), "{error}");
        assert!(!error.contains("topsecret"), "{error}");
    }
}

#[tokio::test]
async fn a_missing_plugin_tells_how_to_get_it() {
    let mut plugin = Plugin { command: "/nonexistent/login".into(), ..script("") };
    assert!(failure(&plugin).await.contains("install it"));
    plugin.install_hint = Some("apt install login".into());
    let error = failure(&plugin).await;
    assert!(error.contains("cannot be started") && error.contains("apt install login"), "{error}");
}

#[tokio::test]
async fn a_plugin_that_hangs_is_killed_with_what_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let plugin = script(&format!("sleep 1000 & echo $! > {}; wait", pids.display()));
    let pid_of_sleep = || std::fs::read_to_string(&pids).ok().filter(|pid| pid.ends_with('\n'));
    let its_time_is_over = async {
        while pid_of_sleep().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::pause();
        tokio::time::advance(TIMEOUT).await;
        tokio::time::resume();
    };
    let (ran, ()) = tokio::join!(plugin.run(b"ca", TIMEOUT), its_time_is_over);
    let (error, pid) = (ran.unwrap_err().to_string(), pid_of_sleep().unwrap());
    assert!(error.contains("was killed"), "{error}");
    let gone =
        || !std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "));
    let ended = async {
        while !gone() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, ended).await.is_ok(), "{pid} still runs");
}
