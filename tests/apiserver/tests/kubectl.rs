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

/// The indented blocks of a page.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(code) => blocks.last_mut().unwrap().push_str(&format!("{code}\n")),
            // An empty line may belong to the block.
            None if line.is_empty() => blocks.last_mut().unwrap().push('\n'),
            None => blocks.push(String::new()),
        }
    }
    blocks.into_iter().map(|block| block.trim_start().to_owned()).filter(|block| !block.is_empty()).collect()
}

/// Every block of docs/fleet.md with kubectl, in order, as an operator types it. Commands for other machines do nothing.
#[test]
fn the_commands_of_the_fleet_page_work() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fleet.md")).unwrap();
    let stubs = server.directory.path().join("stubs");
    std::fs::create_dir(&stubs).unwrap();
    for other in ["curl", "nodelb", "sleep", "ssh"] {
        std::os::unix::fs::symlink("/bin/true", stubs.join(other)).unwrap();
    }
    let path =
        std::env::join_paths([stubs].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())));
    let path = path.unwrap();
    let kubeconfig = std::fs::read_to_string(server.path("admin.kubeconfig")).unwrap();
    let url = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap().to_owned();
    let mut typed = 0;
    for block in blocks(&page) {
        match block.lines().next().unwrap() {
            "apiVersion: v1" => std::fs::write(server.path("web.yaml"), &block).unwrap(),
            "apiVersion: discovery.k8s.io/v1" => std::fs::write(server.path("web-slice.yaml"), &block).unwrap(),
            _ => {}
        }
        if !block.contains("kubectl ") {
            continue;
        }
        let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/kubernetes/rbac.yaml");
        let block =
            block.replace("https://203.0.113.1:6443", &url).replace("/usr/share/nodelb/kubernetes/rbac.yaml", rbac);
        let mut bash = Command::new("timeout");
        bash.args(["60", "bash", "-euo", "pipefail", "-c", &block]).current_dir(server.directory.path());
        bash.env("PATH", &path).env("HOME", server.directory.path()).env("KUBECONFIG", server.path("admin.kubeconfig"));
        let output = bash.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{block}\n{}", String::from_utf8_lossy(&output.stderr));
        typed += 1;
    }
    assert_eq!(typed, 5, "blocks with kubectl");
    let slice = "get endpointslice web-1 -o jsonpath={.endpoints[*].addresses[0]}";
    assert_eq!(server.kubectl(slice), "203.0.113.11 203.0.113.12 203.0.113.13");
    assert_eq!(server.kubectl("get service web -o jsonpath={.spec.externalIPs[0]}"), "203.0.113.100");
    // The kubeconfig of the page may read and not write.
    let account = |line: &str| {
        let output = server.command("admin", line).env_remove("KUBECONFIG").output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(account(&format!("--kubeconfig={} get services -A", server.path("kubeconfig"))).0);
    let (is_done, error) = account(&format!("--kubeconfig={} delete service web", server.path("kubeconfig")));
    assert!(!is_done && error.contains("system:serviceaccount:kube-system:nodelb"), "{error}");
}
