use super::*;

fn request(uri: &str) -> Request {
    Request::parse(&hyper::Method::GET, &uri.parse().unwrap())
}

#[test]
fn rules_are_used_up_in_order() {
    let faults = Faults::new(Behaviour::default());
    faults.answer_next(2, On::list("services"), Fault::Stall);
    faults.answer(On::any(), Fault::Silence);
    let (list, watch) = (request("/api/v1/services"), request("/api/v1/services?watch=1"));
    let seen = [&list, &watch, &list, &list].map(|request| faults.for_request(request).unwrap());
    assert_eq!(seen, [Fault::Stall, Fault::Silence, Fault::Stall, Fault::Silence]);
    faults.clear();
    assert_eq!(faults.for_request(&list), None);
}

/// A later page without its last items would be a list that lacks a few objects, which no client can detect.
#[test]
fn a_list_lacks_items_from_its_first_page_on() {
    let faults = Faults::new(Behaviour::default());
    faults.answer_next(1, On::resource("services"), Fault::Keep { items: 2 });
    let path = "/api/v1/services?limit=3";
    let requests = [format!("{path}&continue=x"), format!("{path}&watch=1"), path.into(), path.into()];
    let seen = requests.map(|uri| faults.for_request(&request(&uri)));
    assert_eq!(seen, [None, None, Some(Fault::Keep { items: 2 }), None]);
}

#[test]
fn a_bookmark_is_neither_swapped_nor_doubled() {
    let faults = Faults::new(Behaviour::default());
    faults.events_next(1, "services", EventFault::Swap);
    assert_eq!(faults.for_event("services", true), None);
    assert_eq!(faults.for_event("nodes", false), None);
    assert_eq!(faults.for_event("services", false), Some(EventFault::Swap));
    assert_eq!(faults.for_event("services", false), None);
}

#[test]
fn written_down() {
    let fault: Fault = serde_json::from_str(r#"{"status": {"code": 429, "retry_after": 1}}"#).unwrap();
    assert_eq!(fault.status().unwrap().reason, "TooManyRequests");
    let fault: Fault = serde_json::from_str(r#""stall""#).unwrap();
    assert_eq!(fault, Fault::Stall);
    assert!(serde_json::from_str::<On>(r#"{"verbs": "list"}"#).is_err());
}
