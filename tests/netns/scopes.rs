//! A node that reads only a part of the cluster: what it does not read is not translated, as another service proxy
//! expects, and its user has no permission for it.

use std::process::Command;

use nodelb_apiserver::{Cluster, Patch, Replica, Role};
use nodelb_prober::Transport;
use serde_json::{Value, json};

use crate::cluster::{apply, cluster_at, configure, in_order, serve, service, slice};
use crate::host::{Host, answering, backend, errno, eventually, frontend, get};
use crate::sandbox;

const SOCKET: &str = "/run/nodelb-test/nodelb.sock";
const SERVER: &str = "192.0.2.21:6443";

const WEB: &str = "198.51.100.80:443";
const API: &str = "198.51.100.81:443";
const DB: &str = "198.51.100.82:443";
const KUBERNETES: &str = "198.51.100.1:443";

/// Services `default/web`, `shop/api` and `pay/db` with the label `proxy=nodelb`, and `default/kubernetes` without it.
fn cluster() -> Cluster {
    let cluster = cluster_at(&[SERVER]);
    for (namespace, name, number) in [("default", "web", 80), ("shop", "api", 81), ("pay", "db", 82)] {
        let mut service = service(name, &format!("198.51.100.{number}"));
        service["metadata"]["labels"] = json!({"proxy": "nodelb"});
        for mut object in [service, slice(name, &[&format!("192.0.2.{number}:80")])] {
            object["metadata"]["namespace"] = namespace.into();
            apply(&cluster, object);
        }
    }
    cluster
}

/// The permissions of contrib/kubernetes/rbac-namespaces.yaml for these namespaces.
fn role_in(namespaces: &[&str]) -> Role {
    let reads = ["list", "watch"];
    let own = Role::none().and(&reads, &["nodes"]).within("default", &reads, &["services"], &["kubernetes"]).within(
        "default",
        &reads,
        &["endpointslices"],
        &[],
    );
    namespaces.iter().fold(own, |role, namespace| role.within(namespace, &reads, &["services", "endpointslices"], &[]))
}

fn configure_with(host: &Host, keys: &str) {
    let kubeconfig = format!("kubeconfig = {:?}\n", host.path("kubeconfig"));
    let admin = format!("[admin]\nsocket = {SOCKET:?}\n");
    configure(host, &format!("{keys}node-object = false\n{kubeconfig}{}\n{admin}", in_order(&[SERVER])));
}

/// Whether exactly these addresses are frontends. A connection to another one is not translated, so it finds no route.
fn is_only(addresses: &[&str]) -> bool {
    [WEB, API, DB, KUBERNETES].iter().all(|address| {
        let is_served = frontend(&format!("{address}/TCP")).is_some();
        is_served == addresses.contains(address) && (is_served || errno(address, Transport::Tcp) == "ENETUNREACH")
    })
}

fn label(cluster: &Cluster, name: &str, proxy: &Value) {
    let labels = Patch::Merge(json!({"metadata": {"labels": {"proxy": proxy}}}));
    cluster.patch("services", "default", name, &labels).unwrap();
}

fn problems() -> String {
    get("/status").map(|status| status["problems"].to_string()).unwrap_or_default()
}

#[test]
fn only_what_is_selected_is_translated() {
    sandbox::run("scopes::only_what_is_selected_is_translated", |sandbox| {
        let host = Host::new(sandbox);
        let _backends =
            [("web", 80), ("api", 81), ("db", 82)].map(|(name, at)| backend(name, &format!("192.0.2.{at}:80")));
        let cluster = cluster();
        cluster.allow("nodelb", role_in(&["default", "shop"]));
        let server: Replica = serve(&cluster, SERVER);
        host.write("kubeconfig", &cluster.kubeconfig(&[&server.url()]).unwrap());
        configure_with(&host, "namespaces = [\"default\", \"shop\"]\nlabel-selector = \"proxy=nodelb\"\n");
        let daemon = host.start();
        assert!(is_only(&[WEB, API]), "{}", host.log());
        assert_eq!((answering(WEB), answering(API)), (vec!["web".to_owned()], vec!["api".to_owned()]));
        label(&cluster, "web", &Value::Null);
        label(&cluster, "kubernetes", &"nodelb".into());
        eventually("one left the selection, and one entered it", || is_only(&[API, KUBERNETES]));
        label(&cluster, "web", &"nodelb".into());
        label(&cluster, "kubernetes", &Value::Null);
        eventually("as before", || is_only(&[WEB, API]) && answering(WEB) == ["web"]);
        assert_eq!(problems(), "[]");
        // A missing Role concerns its own namespace.
        cluster.allow("nodelb", role_in(&["default"]));
        server.faults().end_watches();
        eventually("the namespace is named", || problems().contains("services in namespace shop may not be read"));
        label(&cluster, "web", &Value::Null);
        eventually("changes elsewhere", || is_only(&[API]));
        label(&cluster, "web", &"nodelb".into());
        eventually("changes elsewhere", || is_only(&[WEB, API]) && answering(API) == ["api"]);
        // A restart without an apiserver, and then with one that still denies the namespace.
        drop(server);
        // It stores its state when it stops; without that, no list could tell that `web` has left the selection.
        daemon.stop();
        let mut daemon = host.spawn(None);
        eventually("the remembered state", || is_only(&[WEB, API]));
        label(&cluster, "web", &Value::Null);
        let server = serve(&cluster, SERVER);
        assert!(daemon.wait_ready(), "{}", host.log());
        eventually("a change that its list shows", || is_only(&[API]) && answering(API) == ["api"]);
        label(&cluster, "web", &"nodelb".into());
        eventually("changes elsewhere", || is_only(&[WEB, API]) && answering(WEB) == ["web"]);
        apply(&cluster, slice("web", &[]));
        eventually("an empty slice elsewhere", || errno(WEB, Transport::Tcp) == "ECONNREFUSED");
        apply(&cluster, slice("web", &["192.0.2.80:80"]));
        cluster.allow("nodelb", role_in(&["default", "shop"]));
        eventually("the Role is back", || is_only(&[WEB, API]) && problems() == "[]");
        // Another selection: the services stay until it is accepted.
        drop(server);
        daemon.stop();
        configure_with(&host, "services = [\"default/kubernetes\"]\n");
        cluster.allow("nodelb", role_in(&[]));
        let mut daemon = host.spawn(None);
        eventually("the remembered state", || is_only(&[WEB, API]));
        assert_eq!((answering(WEB), answering(API)), (vec!["web".to_owned()], vec!["api".to_owned()]));
        let server = serve(&cluster, SERVER);
        assert!(daemon.wait_ready(), "{}", host.log());
        let held = "kubernetes.services = default/kubernetes selects 0 of 2 known services";
        eventually("it waits to be accepted", || problems().contains(held));
        assert_eq!((answering(WEB), answering(API)), (vec!["web".to_owned()], vec!["api".to_owned()]));
        let accepted = Command::new(env!("CARGO_BIN_EXE_nodelb")).args(["accept", "--admin", SOCKET]).status();
        assert!(accepted.unwrap().success());
        eventually("only the service of the apiservers", || is_only(&[KUBERNETES]));
        let asked = server.faults().take_requests();
        let is_narrow = |line: &String| line.contains("/namespaces/default/") || !line.contains("/services");
        assert!(asked.iter().all(is_narrow), "{asked:#?}");
        daemon.stop();
    });
}
