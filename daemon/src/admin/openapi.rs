//! `/openapi.json`: the description of the API in OpenAPI 3.1, generated from the route table. Owns the translation;
//! every fact comes from a [`Route`], a [`Parameter`] or a [`Schema`].

use nodelb_core::output::schema::{Column, Kind, Schema};
use serde_json::{Map, Value, json};

use super::query::{Parameter, Values};
use super::routes::{Form, Route};

/// Returns the description of these routes.
pub(super) fn describe(routes: &[Route]) -> Value {
    let paths: Map<String, Value> =
        routes.iter().map(|route| (route.path.to_owned(), json!({ "get": operation(route) }))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "nodelb",
            "summary": "State of the load balancer on this node. Read-only.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://localhost:9890" }],
        "paths": paths,
        "components": {
            "schemas": { "Problem": problem() },
            "responses": { "Problem": answer("The request cannot be answered: the problem and the remedy.", &[
                ("text/plain", json!({ "type": "string" })),
                ("application/json", json!({ "$ref": "#/components/schemas/Problem" })),
            ]) },
        },
    })
}

fn operation(route: &Route) -> Value {
    let parameters: Vec<Value> = route.takes().into_iter().map(parameter).collect();
    let problem = json!({ "$ref": "#/components/responses/Problem" });
    let mut responses = json!({
        "200": answer(route.shows, &forms(route)),
        "400": problem,
        "403": problem,
        "503": problem,
    });
    if matches!(route.form, Form::Verdict(_)) {
        responses["503"] = answer("Not ready; the body lists the failed conditions.", &forms(route));
    }
    json!({
        "operationId": operation_id(route.path),
        "summary": route.shows,
        "parameters": parameters,
        "responses": responses,
    })
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

fn forms(route: &Route) -> Vec<(&'static str, Value)> {
    let text = json!({ "type": "string" });
    match route.form {
        Form::Own("application/json") => vec![("application/json", json!({ "type": "object" }))],
        Form::Own(form) => vec![(form, text)],
        Form::Tables(tables) | Form::Verdict(tables) => {
            vec![("text/plain", text), ("application/json", page(tables))]
        }
        Form::Followed(tables, _) | Form::Watched(tables, _) => {
            vec![("text/plain", text.clone()), ("application/json", page(tables)), ("text/event-stream", text)]
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

/// Returns the schema of a page: one list of rows per table.
fn page(tables: &[&Schema]) -> Value {
    let rows = |schema: &&Schema| (schema.name.to_owned(), json!({ "type": "array", "items": row(schema) }));
    let names: Vec<&str> = tables.iter().map(|schema| schema.name).collect();
    json!({
        "type": "object",
        "properties": tables.iter().map(rows).collect::<Map<_, _>>(),
        "required": names,
        "additionalProperties": false,
    })
}

/// Returns the schema of a row.
pub(super) fn row(schema: &Schema) -> Value {
    let cell = |column: &Column| (column.key(), cell(column.kind));
    let keys: Vec<String> = schema.columns.iter().map(Column::key).collect();
    json!({
        "type": "object",
        "properties": schema.columns.iter().map(cell).collect::<Map<_, _>>(),
        "required": keys,
        "additionalProperties": false,
    })
}

/// A missing value is null.
fn cell(kind: Kind) -> Value {
    match kind {
        Kind::Name | Kind::Text => json!({ "type": ["string", "null"] }),
        Kind::OneOf(words) => {
            let words: Vec<Value> = words.iter().map(|word| json!(word)).chain([Value::Null]).collect();
            json!({ "enum": words })
        }
        Kind::Number => json!({ "type": ["integer", "null"], "minimum": 0 }),
        Kind::Flag => json!({ "type": ["boolean", "null"] }),
        Kind::List => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Duration => json!({ "type": ["number", "null"], "minimum": 0, "description": "Seconds." }),
        Kind::Age => json!({ "type": ["integer", "null"], "minimum": 0, "description": "Seconds." }),
    }
}

fn problem() -> Value {
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
