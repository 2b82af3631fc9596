use std::collections::BTreeSet;

use serde_json::Value;

use super::describe;
use crate::admin::routes::ROUTES;

#[test]
fn every_route_and_parameter_is_described() {
    let document = describe(ROUTES);
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), ROUTES.len() + 2);
    for (method, number) in [("post", 4), ("delete", 2)] {
        assert_eq!(paths["/drains"][method]["parameters"].as_array().unwrap().len(), number);
    }
    for route in ROUTES {
        let operation = &paths[route.path]["get"];
        let names: Vec<&str> =
            operation["parameters"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
        let expected: Vec<&str> = route.takes().iter().map(|parameter| parameter.name).collect();
        assert_eq!(names, expected, "{}", route.path);
        let statuses = route.parameters.iter().flat_map(|parameter| parameter.refusals).map(|(status, _)| *status);
        let each: BTreeSet<&str> = statuses.clone().collect();
        assert_eq!(statuses.count(), each.len(), "{}: each status describes one reason", route.path);
        assert!(each.iter().all(|status| operation["responses"][*status]["description"].is_string()), "{}", route.path);
        assert!(operation["responses"]["200"]["content"].as_object().is_some_and(|forms| !forms.is_empty()));
    }
}

/// Checks the requirements of OpenAPI 3.1 for the objects that occur here, and that each reference has a target.
#[test]
fn the_document_is_well_formed() {
    let document = describe(ROUTES);
    for key in ["title", "version"] {
        assert!(document["info"][key].is_string());
    }
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        assert!(path.starts_with('/') && !path.contains('?'), "{path}");
        for operation in item.as_object().unwrap().values() {
            operations.push(operation["operationId"].as_str().unwrap());
            for parameter in operation["parameters"].as_array().unwrap() {
                assert!(parameter["in"] == "query" && parameter["required"].is_boolean());
                assert!(parameter["description"].is_string() && parameter["schema"]["type"].is_string());
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(status.parse::<u16>().is_ok());
                assert!(response["description"].is_string() || response["$ref"].is_string());
            }
        }
    }
    operations.sort_unstable();
    assert!(operations.windows(2).all(|pair| pair[0] != pair[1]), "{operations:?}");
    follow(&document, &document);
}

fn follow(document: &Value, value: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref") {
                let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            fields.values().for_each(|value| follow(document, value));
        }
        Value::Array(values) => values.iter().for_each(|value| follow(document, value)),
        _ => {}
    }
}
