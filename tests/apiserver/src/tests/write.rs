use super::*;
use crate::resource::RESOURCES;

fn resource(name: &str) -> &'static Resource {
    RESOURCES.iter().find(|it| it.plural == name).unwrap()
}

struct World {
    state: State,
    writer: Writer,
}

impl World {
    fn new() -> Self {
        Self { state: State::default(), writer: Writer::new("tester") }
    }

    fn run<T>(&mut self, of: &str, part: Part, what: impl FnOnce(&mut State, &Write<'_>) -> T) -> T {
        let write = Write { resource: resource(of), part, writer: &self.writer, now: "2026-01-01T00:00:00Z" };
        what(&mut self.state, &write)
    }

    fn create(&mut self, of: &str, object: Value) -> Result<Arc<Object>, Status> {
        self.run(of, Part::Main, |state, write| state.create(write, "shop", object))
    }

    fn update(&mut self, of: &str, object: Value) -> Result<Arc<Object>, Status> {
        let key = key(object["metadata"]["name"].as_str().unwrap());
        self.run(of, Part::Main, |state, write| state.update(write, &key, object))
    }
}

fn key(name: &str) -> Key {
    ("shop".into(), name.into())
}

fn slice(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "resourceVersion": "", "uid": "mine", "generation": 9},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}],
    })
}

#[test]
fn created_with_what_a_server_sets() {
    let mut world = World::new();
    let object = world.create("endpointslices", slice("web")).unwrap();
    let metadata = &object.value["metadata"];
    assert_eq!(
        (&object.value["kind"], &object.value["apiVersion"]),
        (&json!("EndpointSlice"), &json!("discovery.k8s.io/v1"))
    );
    assert_eq!((&metadata["namespace"], &metadata["generation"]), (&json!("shop"), &json!(1)));
    assert_ne!(metadata["uid"], "mine");
    assert_eq!(metadata["managedFields"][0]["manager"], "tester");
    assert_eq!(serde_json::from_slice::<Value>(&object.bytes).unwrap(), object.value);
    let again = world.create("endpointslices", slice("web")).unwrap_err();
    assert_eq!((again.code, again.reason.as_str()), (409, "AlreadyExists"));
}

#[test]
fn what_is_refused() {
    let mut world = World::new();
    for (code, wrong) in [
        (400, json!([])),
        (400, json!({"metadata": {"name": "a", "namespace": "other"}})),
        (400, json!({"metadata": {"name": "a"}, "kind": "Service"})),
        (422, json!({"metadata": {}})),
        (422, json!({"metadata": {"name": "A_b"}})),
        (422, json!({"metadata": {"name": "a"}})),
    ] {
        assert_eq!(world.create("endpointslices", wrong.clone()).unwrap_err().code, code, "{wrong}");
    }
    assert_eq!(world.update("endpointslices", slice("none")).unwrap_err().code, 404);
}

#[test]
fn conflicts_generation_and_writes_that_change_nothing() {
    let mut world = World::new();
    let first = world.create("endpointslices", slice("web")).unwrap();
    let same = world.update("endpointslices", first.value.clone()).unwrap();
    assert_eq!(same.bytes, first.bytes);

    let mut labelled = first.value.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let second = world.update("endpointslices", labelled.clone()).unwrap();
    assert_eq!(second.value["metadata"]["generation"], 1);
    let stale = world.update("endpointslices", labelled).unwrap_err();
    assert_eq!((stale.code, stale.reason.as_str()), (409, "Conflict"));

    let emptied = world.run("endpointslices", Part::Main, |state, write| {
        state.patch(write, &key("web"), &Patch::Merge(json!({"endpoints": null})))
    });
    assert_eq!(emptied.unwrap().value["metadata"]["generation"], 2);
}

#[test]
fn a_status_is_written_apart() {
    let mut world = World::new();
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}});
    let service = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer"}, "status": status});
    let stored = world.create("services", service.clone()).unwrap();
    assert_eq!(stored.value["status"], json!({"loadBalancer": {}}));
    let patch = json!({"status": status, "metadata": {"labels": {"a": "b"}}});
    let stored = world
        .run("services", Part::Status, |state, write| state.patch(write, &key("web"), &Patch::Strategic(patch.clone())))
        .unwrap();
    assert_eq!((&stored.value["status"], &stored.value["metadata"]["labels"]), (&status, &Value::Null));
    let stored = world.update("services", json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer"}}));
    assert_eq!(stored.unwrap().value["status"], status);
}

#[test]
fn deleted_and_made_again() {
    let mut world = World::new();
    let first = world.create("services", json!({"metadata": {"name": "web"}})).unwrap();
    let delete = |world: &mut World, preconditions: Value| {
        world.run("services", Part::Main, |state, write| state.delete(write, &key("web"), &preconditions))
    };
    assert_eq!(delete(&mut world, json!({"uid": "other"})).unwrap_err().code, 409);
    delete(&mut world, Value::Null).unwrap();
    assert_eq!(delete(&mut world, Value::Null).unwrap_err().code, 404);
    let second = world.create("services", json!({"metadata": {"name": "web"}})).unwrap();
    assert_ne!(first.value["metadata"]["uid"], second.value["metadata"]["uid"]);
    assert_eq!(first.value["spec"]["clusterIP"], second.value["spec"]["clusterIP"]);
}

#[test]
fn finalizers_keep_an_object() {
    let mut world = World::new();
    let service = json!({"metadata": {"name": "web", "finalizers": ["cloud"]}});
    world.create("services", service).unwrap();
    let marked =
        world.run("services", Part::Main, |state, write| state.delete(write, &key("web"), &Value::Null)).unwrap();
    assert_eq!(marked.value["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    world.update("services", json!({"metadata": {"name": "web"}})).unwrap();
    assert!(world.state.find(resource("services"), &key("web")).is_err());
}
