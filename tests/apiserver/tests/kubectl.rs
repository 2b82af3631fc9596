//! Runs the installed `kubectl` against the server's binary; does nothing where `kubectl` is not
//! installed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MANIFEST: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  ports: [{port: 80, name: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1]}]
ports: [{port: 8080, name: http}]
";

struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_nodelb-apiserver"))
            .args(["--listen", "127.0.0.1:0", "--directory"])
            .arg(directory.path())
            .arg("--control")
            .arg(directory.path().join("control"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        std::fs::write(directory.path().join("manifest.yaml"), MANIFEST).unwrap();
        Self { child, directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn command(&self, user: &str, line: &str) -> Command {
        let mut kubectl = Command::new("timeout");
        kubectl.args(["30", "kubectl", "--cache-dir"]).arg(self.path("cache"));
        kubectl.arg("--kubeconfig").arg(self.path(&format!("{user}.kubeconfig"))).args(line.split(' '));
        kubectl.current_dir(self.directory.path()).env("HOME", self.directory.path()).stdin(Stdio::null());
        kubectl
    }

    /// Runs kubectl; returns its output and whether it succeeded.
    fn say(&self, user: &str, line: &str) -> (String, bool) {
        let output = self.command(user, line).output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (text, output.status.success())
    }

    fn kubectl(&self, line: &str) -> String {
        let (text, success) = self.say("admin", line);
        assert!(success, "kubectl {line}: {text}");
        text
    }
}

fn is_installed() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| Path::new(&directory).join("kubectl").exists())
}

#[test]
fn kubectl_works() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    server.kubectl("apply -f manifest.yaml");
    assert!(server.kubectl("apply -f manifest.yaml").contains("service/web unchanged"));
    assert!(server.kubectl("get service web -n shop -o yaml").contains("clusterIP: 10.96.0.17"));
    assert!(server.kubectl("get svc,endpointslices -A").contains("web-1"));
    let shown = server.kubectl("get svc web -n shop");
    assert!(shown.contains("PORT(S)") && shown.contains("80/TCP"), "{shown}");
    assert!(server.kubectl("get svc -n shop -l app=none").contains("No resources"));

    let mut watch = server.command("admin", "get svc -A -w -o name").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "service/web");
    server.kubectl("-n shop annotate svc web a=b");
    assert_eq!(lines.next().unwrap().unwrap(), "service/web");
    watch.kill().unwrap();
    watch.wait().unwrap();

    server.kubectl("-n shop patch svc web -p {\"spec\":{\"ports\":[{\"port\":443,\"name\":\"https\"}]}}");
    let ports = "-n shop get svc web -o jsonpath={.spec.ports[*].port}";
    assert_eq!(server.kubectl(ports), "443 80");
    server.kubectl("-n shop patch svc web --type=json -p [{\"op\":\"remove\",\"path\":\"/spec/ports/0\"}]");
    assert_eq!(server.kubectl(ports), "80");
    server.kubectl(
        "-n shop patch endpointslice web-1 --type=merge -p {\"endpoints\":null,\"ports\":null} --field-manager=kube-apiserver",
    );
    let slice = server.kubectl("-n shop get endpointslice web-1 -o yaml --show-managed-fields");
    assert!(slice.contains("endpoints: null") && slice.contains("manager: kube-apiserver"), "{slice}");
    server.kubectl(
        "-n shop patch svc web --subresource=status -p {\"status\":{\"loadBalancer\":{\"ingress\":[{\"ip\":\"192.0.2.9\"}]}}}",
    );
    assert!(server.kubectl("-n shop get svc web -o yaml").contains("ip: 192.0.2.9"));
    server.kubectl("apply --server-side --force-conflicts -f manifest.yaml");
    server.kubectl("create namespace other");
    server.kubectl("-n other create service clusterip plain --tcp=80:8080");
    assert!(server.kubectl("-n other get svc plain -o yaml").contains("targetPort: 8080"));
    server.kubectl("-n other delete svc plain");
    server.kubectl("delete -f manifest.yaml");
    assert!(server.kubectl("get svc -A").contains("No resources"));
}

#[test]
fn what_kubectl_is_refused() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    assert_eq!(server.say("nodelb", "auth can-i list services -A"), ("yes\n".into(), true));
    assert_eq!(server.say("nodelb", "auth can-i delete services -A"), ("no\n".into(), false));
    let (text, success) = server.say("nodelb", "get namespaces");
    assert!(!success && text.contains("User \"nodelb\" cannot list resource \"namespaces\""), "{text}");
    let (text, _) = server.say("admin", "get svc none");
    assert!(text.contains("Error from server (NotFound): services \"none\" not found"), "{text}");
    let control = server.path("control");
    let send = |command: &str| {
        Command::new(env!("CARGO_BIN_EXE_nodelb-apiserver"))
            .args(["--control", &control, "--send", command])
            .output()
            .unwrap()
    };
    let fault = r#"{"answer": {"replica": 0, "on": {"resource": "services"}, "fault": {"status": {"code": 403}}}}"#;
    assert!(send(fault).status.success());
    assert!(server.say("admin", "get svc").0.contains("Forbidden"));
    assert!(send(r#"{"clear": 0}"#).status.success() && send("\"compact\"").status.success());
    assert!(!send(r#"{"stop": 9}"#).status.success());
    assert!(server.say("admin", "get svc").1);
}
