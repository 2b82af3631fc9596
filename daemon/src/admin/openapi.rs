//! `/openapi.json`: the description of the API in OpenAPI 3.1, generated from the route table. Owns the translation;
//! every fact comes from a [`Route`], a [`Parameter`] or the type of an answer ([`nodelb_report::rows`]).

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::accept;
use super::drain::{self, OF_DRAIN, OF_UNDRAIN};
use super::query::{Parameter, Values};
use super::route::{Form, Route};

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
            "responses": { "Refusal": answer("The request cannot be answered: the problem and the remedy.", &[
                ("text/plain", json!({ "type": "string" })),
                ("application/json", json!({ "$ref": "#/components/schemas/Refusal" })),
            ]) },
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
    let mut responses = responses(answer(route.shows, &forms(route, generator)), &["400", "403", "503"]);
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
    json!({
        "operationId": id,
        "summary": summary,
        "parameters": parameters.iter().map(|it| parameter(it)).collect::<Vec<_>>(),
        "responses": responses(answer("What is in effect now.", &forms), &["400", "403", "404", "409", "413", "503"]),
    })
}

/// The answer, and a refusal with each of these statuses.
fn responses(answer: Value, refusals: &[&str]) -> Value {
    let refusal = json!({ "$ref": "#/components/responses/Refusal" });
    let refused = refusals.iter().map(|status| ((*status).to_owned(), refusal.clone()));
    std::iter::once(("200".to_owned(), answer)).chain(refused).collect()
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
    let text = json!({ "type": "string" });
    match route.form {
        Form::Own("application/json") => vec![("application/json", json!({ "type": "object" }))],
        Form::Own(form) => vec![(form, text)],
        Form::Data(schema) | Form::Verdict(schema) => {
            vec![("text/plain", text), ("application/json", schema(generator).to_value())]
        }
        Form::Followed(schema, _) | Form::Watched(schema, _) => {
            let data = schema(generator).to_value();
            vec![("text/plain", text.clone()), ("application/json", data), ("text/event-stream", text)]
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
            Values::Text(_, pattern) | Values::Needed(_, pattern) => json!({ "type": "string", "pattern": pattern }),
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
