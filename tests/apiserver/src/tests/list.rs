use serde_json::Value;

use super::*;

fn services() -> &'static Resource {
    Resource::find("services").unwrap()
}

fn store(count: usize) -> Store {
    let mut store = Store::default();
    for number in 0..count {
        let key = ("shop".to_owned(), format!("s{number:02}"));
        let value = json!({"metadata": {"name": key.1, "labels": {"even": (number % 2 == 0).to_string()}}});
        store.put(services(), &key, value);
    }
    store
}

fn ask(store: &mut Store, query: &str) -> Result<Value, Status> {
    let uri = format!("/api/v1/services?{query}").parse().unwrap();
    let body = list(store, services(), &Request::parse(&hyper::Method::GET, &uri), None)?;
    Ok(serde_json::from_slice(&body).unwrap())
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn pages_are_of_one_revision() {
    let mut store = store(5);
    let first = ask(&mut store, "limit=2").unwrap();
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["s00", "s01"], &json!(3)));
    store.remove(services(), &("shop".into(), "s03".into())).unwrap();
    let more = format!("limit=2&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let second = ask(&mut store, &more).unwrap();
    assert_eq!((names(&second), &second["metadata"]["resourceVersion"]), (vec!["s02", "s03"], &json!("5")));
    let last = format!("limit=2&continue={}", second["metadata"]["continue"].as_str().unwrap());
    let third = ask(&mut store, &last).unwrap();
    assert_eq!((names(&third), &third["metadata"]["continue"]), (vec!["s04"], &Value::Null));
    store.compact();
    assert_eq!(ask(&mut store, &more).unwrap_err().code, 410);
    assert_eq!(ask(&mut store, "continue=x").unwrap_err().code, 400);
}

#[test]
fn revisions() {
    let mut store = store(3);
    assert_eq!(ask(&mut store, "resourceVersion=0").unwrap()["metadata"]["resourceVersion"], "3");
    assert_eq!(ask(&mut store, "resourceVersion=4").unwrap_err().code, 504);
    assert_eq!(ask(&mut store, "resourceVersion=x").unwrap_err().code, 400);
}

#[test]
fn selected() {
    let list = ask(&mut store(4), "labelSelector=even%3Dtrue&fieldSelector=metadata.name!%3Ds00").unwrap();
    assert_eq!(names(&list), ["s02"]);
}

#[test]
fn faults() {
    let request = Request::parse(&hyper::Method::GET, &"/api/v1/services".parse().unwrap());
    let ask = |fault| list(&mut store(4), services(), &request, Some(&fault)).unwrap();
    let kept: Value = serde_json::from_slice(&ask(Fault::Keep { items: 1 })).unwrap();
    assert_eq!(names(&kept), ["s00"]);
    let garbage = ask(Fault::Garbage { bytes: "{\"metadata\":7}".into() });
    let garbage: Value = serde_json::from_slice(&garbage).unwrap();
    assert_eq!((garbage["items"].as_array().unwrap().len(), &garbage["items"][0]["metadata"]), (5, &json!(7)));
}
