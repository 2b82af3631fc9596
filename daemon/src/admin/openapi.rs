//! `/openapi.json`: the description of the API in OpenAPI 3.1, generated from the route table. Owns the translation;
//! every fact comes from a [`Route`], a [`Parameter`] or the type of an answer ([`nodelb_report::rows`]).

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::drain::{self, OF_DRAIN, OF_UNDRAIN};
use super::query::{self, Parameter, Values};
use super::route::{Form, Route};
use super::{accept, pattern};

pub(super) fn describe(routes: &[Route]) -> Value {
    let mut generator = generator();
    let mut paths: Map<String, Value> = routes
        .iter()
        .map(|route| (route.path.to_owned(), json!({ "get": operation(route, &mut generator) })))
        .collect();
    let post =
        change("drain", "Drain a backend: new connections avoid it. Only over the Unix socket, by root.", &OF_DRAIN);
    let delete = change("undrain", "End a drain. Only over the Unix socket, by root.", &OF_UNDRAIN);
    paths.insert(drain::PATH.into(), json!({ "post": post, "delete": delete }));
    let post = change("accept", "Accept a changed selection of services. Only over the Unix socket, by root.", &[]);
    paths.insert(accept::PATH.into(), json!({ "post": post }));
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Refusal".into(), refusal());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "nodelb",
            "summary": "State of the load balancer on this node.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://localhost:9890" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Refusal": refused("The request cannot be answered: the problem and the remedy."),
                "Unreadable": refused(UNREADABLE),
            },
        },
    })
}

/// The generator of schemas of data; they refer to each other in the document.
fn generator() -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    settings.into_generator()
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let parameters: Vec<Value> = route.takes().into_iter().map(parameter).collect();
    let mut responses = responses(answer(route.shows, &forms(route, generator)), &["403", "503"]);
    for (status, why) in route.parameters.iter().flat_map(|parameter| parameter.refusals) {
        responses[*status] = refused(why);
    }
    if matches!(route.form, Form::Verdict(_)) {
        responses["503"] = answer("Not ready; the body lists the failed conditions.", &forms(route, generator));
    }
    json!({
        "operationId": operation_id(route.path),
        "summary": route.shows,
        "parameters": parameters,
        "responses": responses,
    })
}

/// A request that changes something.
fn change(id: &str, summary: &str, parameters: &[&Parameter]) -> Value {
    let done = json!({ "type": "object", "properties": { "done": { "type": "string" } }, "required": ["done"] });
    let forms = [("text/plain", json!({ "type": "string" })), ("application/json", done)];
    let mut responses = responses(answer("What is in effect now.", &forms), &["403", "404", "409", "413", "503"]);
    if parameters.iter().any(|parameter| std::ptr::eq(*parameter, &query::FOR)) {
        responses["400"] =
            refused(&format!("{UNREADABLE} Or: the drain lasts less than a second or more than 366 days."));
    }
    json!({
        "operationId": id,
        "summary": summary,
        "parameters": parameters.iter().map(|it| parameter(it)).collect::<Vec<_>>(),
        "responses": responses,
    })
}

/// The answer, a refusal of what the parameters do not allow, and a refusal with each of these statuses.
fn responses(answer: Value, refusals: &[&str]) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/components/responses/{name}") });
    let refused = refusals.iter().map(|status| ((*status).to_owned(), reference("Refusal")));
    [("200".to_owned(), answer), ("400".to_owned(), reference("Unreadable"))].into_iter().chain(refused).collect()
}

/// The response with the status 400, which a request has only if it does not fit the description.
const UNREADABLE: &str = "A parameter is unknown, missing, given more than once, or not as its schema has it.";

fn refused(description: &str) -> Value {
    answer(
        description,
        &[
            ("text/plain", json!({ "type": "string" })),
            ("application/json", json!({ "$ref": "#/components/schemas/Refusal" })),
        ],
    )
}

/// `/openapi.json` becomes `openapi_json`, and `/` becomes `routes`.
fn operation_id(path: &str) -> String {
    match path.trim_start_matches('/') {
        "" => "routes".into(),
        name => name.replace(['/', '.', '-'], "_"),
    }
}

fn answer(description: &str, forms: &[(&str, Value)]) -> Value {
    let content: Map<String, Value> =
        forms.iter().map(|(form, schema)| ((*form).to_owned(), json!({ "schema": schema }))).collect();
    json!({ "description": description, "content": content })
}

fn forms(route: &Route, generator: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
    let text = || json!({ "type": "string" });
    match route.form {
        Form::Own(&["application/json"]) => vec![("application/json", json!({ "type": "object" }))],
        Form::Own(forms) => forms.iter().map(|form| (*form, text())).collect(),
        Form::Data(schema) | Form::Verdict(schema) => {
            let page = (route.path == "/").then(|| ("text/html", text()));
            let data = schema(generator).to_value();
            [("text/plain", text()), ("application/json", data)].into_iter().chain(page).collect()
        }
        Form::Followed(schema, _) | Form::Watched(schema, _) => {
            let data = schema(generator).to_value();
            let changes = [("application/jsonl", text()), ("text/event-stream", text())];
            [("text/plain", text()), ("application/json", data)].into_iter().chain(changes).collect()
        }
    }
}

fn parameter(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "required": matches!(parameter.values, Values::Needed(..)),
        "allowEmptyValue": matches!(parameter.values, Values::Flag),
        "description": parameter.about,
        "schema": match parameter.values {
            Values::Text(_, pattern) | Values::Needed(_, pattern) => {
                json!({ "type": "string", "pattern": pattern::expanded(pattern) })
            }
            Values::OneOf(names) => json!({ "type": "string", "enum": names }),
            Values::Number(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Values::Flag => json!({ "type": "string", "enum": ["", "true", "false"] }),
        },
    })
}

fn refusal() -> Value {
    json!({
        "type": "object",
        "properties": { "error": { "type": "string" } },
        "required": ["error"],
        "additionalProperties": false,
    })
}

#[cfg(test)]
#[path = "tests/openapi.rs"]
mod tests;
