//! The outage that nodelb exists for: emptying the slice of one service must not affect another
//! service with the same backend, whatever their names, their order, and the next change.

use nodelb_prober::Transport;

use crate::host::{Host, answering, backend, errno, eventually, is_served_by};
use crate::sandbox;

const BACKEND: &str = "192.0.2.80:80";

fn service(namespace: &str, name: &str, address: &str, annotation: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}, annotations: {{touched: \
         \"{annotation}\"}}}}\nspec:\n  clusterIP: {address}\n  clusterIPs: [{address}]\n  ports: [{{name: http, port: 80, \
         protocol: TCP}}]\n"
    )
}

fn slice(namespace: &str, name: &str, endpoints: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, namespace: {namespace}, labels: \
         {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\nendpoints: {endpoints}\nports: [{{name: http, port: \
         80, protocol: TCP}}]\n"
    )
}

const FULL: &str = "[{addresses: [192.0.2.80], conditions: {ready: true}}]";

/// One of the two services of a case.
struct Side {
    namespace: &'static str,
    name: &'static str,
    address: &'static str,
}

impl Side {
    fn file(&self, kind: &str) -> String {
        format!("{kind}-{}-{}.yaml", self.namespace, self.name)
    }

    fn serve_service(&self, host: &Host, annotation: &str) {
        host.serve(&self.file("service"), &service(self.namespace, self.name, self.address, annotation));
    }

    fn serve_slice(&self, host: &Host, endpoints: &str) {
        host.serve(&self.file("slice"), &slice(self.namespace, self.name, endpoints));
    }

    fn frontend(&self) -> String {
        format!("{}:80/TCP", self.address)
    }

    fn address(&self) -> String {
        format!("{}:80", self.address)
    }
}

/// Empties one service, then changes the other, then the empty one, then restores it.
fn replay(host: &Host, emptied: &Side, other: &Side) {
    let served = ["192.0.2.80:80/TCP"];
    for side in [emptied, other] {
        side.serve_service(host, "before");
        side.serve_slice(host, FULL);
    }
    eventually("both are served", || {
        is_served_by(&emptied.frontend(), &served) && is_served_by(&other.frontend(), &served)
    });
    emptied.serve_slice(host, "null");
    eventually("the emptied one is empty", || is_served_by(&emptied.frontend(), &[]));
    let keeps_its_backend = |when: &str| {
        assert!(is_served_by(&other.frontend(), &served), "{}/{} {when}", other.namespace, other.name);
        assert_eq!(answering(&other.address()), ["incident"], "{}/{} {when}", other.namespace, other.name);
        assert_eq!(errno(&emptied.address(), Transport::Tcp), "ECONNREFUSED", "{when}");
    };
    keeps_its_backend("after the other was emptied");
    for (touched, when) in [(other, "after it was annotated"), (emptied, "after the other was annotated")] {
        touched.serve_service(host, when);
        settle(host);
        keeps_its_backend(when);
    }
    emptied.serve_slice(host, FULL);
    eventually("the emptied one is back", || is_served_by(&emptied.frontend(), &served));
    assert_eq!(answering(&emptied.address()), ["incident"]);
    for side in [emptied, other] {
        host.withdraw(&side.file("slice"));
        host.withdraw(&side.file("service"));
    }
    eventually("both are gone", || {
        crate::host::frontend(&emptied.frontend()).is_none() && crate::host::frontend(&other.frontend()).is_none()
    });
}

/// Waits until nodelb has read all earlier writes: it reads files in the order of their changes.
fn settle(host: &Host) {
    host.serve("marker.yaml", &service("marker", "marker", "198.51.100.99", ""));
    eventually("the marker", || crate::host::frontend("198.51.100.99:80/TCP").is_some());
    host.withdraw("marker.yaml");
    eventually("the marker's end", || crate::host::frontend("198.51.100.99:80/TCP").is_none());
}

#[test]
fn emptying_one_service_leaves_the_other_alone() {
    sandbox::run("incident::emptying_one_service_leaves_the_other_alone", |sandbox| {
        let host = Host::new(sandbox);
        let _backend = backend("incident", BACKEND);
        let _daemon = host.start();
        let side = |namespace, name, address| Side { namespace, name, address };
        let test = side("default", "test", "198.51.100.1");
        let pairs = [
            [&test, &side("default", "test-extended", "198.51.100.2")],
            [&test, &side("default", "tes", "198.51.100.3")],
            [&test, &side("other", "test", "198.51.100.4")],
            [&test, &side("default-test", "test", "198.51.100.5")],
        ];
        for [left, right] in pairs {
            replay(&host, left, right);
            replay(&host, right, left);
        }
    });
}
