//! Options of the commands that query a running daemon, and the parameters of their requests.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::engine::ArgValueCompleter;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::state::status::Status;
use nodelb_report::filter::named;
use nodelb_report::rows::{
    Answer, Connections as ConnectionsAnswer, Drops as DropsAnswer, Frontends as FrontendsAnswer,
};
use strum::VariantNames;

use super::answer::decode;
use super::asking::{Asking, Parameter};
use super::{completions, names};
use crate::exit::Failure;

/// Filters for rows that belong to a service and have an address.
#[derive(Debug, Args)]
pub(super) struct DaemonAddresses {
    /// Only this service; without a namespace, the service with this name
    #[arg(value_name = "[NAMESPACE/]NAME", conflicts_with = "service", add = ArgValueCompleter::new(completions::services))]
    pub(super) name: Option<String>,
    /// The same as NAMESPACE/NAME
    #[arg(long, value_name = "NAMESPACE/NAME", help_heading = "Filters", add = ArgValueCompleter::new(completions::services))]
    pub(super) service: Option<ServiceName>,
    /// Filter by namespace
    #[arg(short, long, value_name = "NAMESPACE", help_heading = "Filters")]
    pub(super) namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace", help_heading = "Filters")]
    pub(super) all_namespaces: bool,
    /// Filter by address, with any port
    #[arg(long, value_name = "ADDRESS", help_heading = "Filters")]
    pub(super) address: Option<Addr>,
    #[command(flatten)]
    pub(super) asking: Asking,
}

/// Filters for rows that also have a type and a status.
#[derive(Debug, Args)]
pub(super) struct Rows {
    /// Filter by type: ClusterIP, NodePort, ExternalIP, LoadBalancer or Static
    #[arg(long = "type", value_name = "TYPE", value_parser = kinds(), ignore_case = true, hide_possible_values = true, help_heading = "Filters")]
    pub(super) kind: Option<FrontendKind>,
    /// Filter by status: OK, NoBackends, LastResort, Held, Kept, Conflict, Refused or Pending
    #[arg(long, value_name = "STATUS", value_parser = statuses(), ignore_case = true, hide_possible_values = true, help_heading = "Filters")]
    pub(super) status: Option<Status>,
    #[command(flatten)]
    pub(super) addresses: DaemonAddresses,
}

/// Parses one of the names, and completes them in a shell.
fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::VARIANTS).try_map(|name| named::<Status>(&name, "status"))
}

fn kinds() -> impl TypedValueParser<Value = FrontendKind> {
    PossibleValuesParser::new(FrontendKind::VARIANTS).try_map(|name| named::<FrontendKind>(&name, "type"))
}

impl DaemonAddresses {
    /// Returns the requested service.
    pub(super) fn service(&self) -> Result<Option<ServiceName>, Failure> {
        match (&self.service, &self.name) {
            (Some(service), _) => Ok(Some(service.clone())),
            (None, Some(name)) => names::resolve(&self.asking, name, self.namespace.as_deref()).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Queries the daemon for a list of these rows and prints it. An empty list is a failure if the service does not exist.
    pub(super) fn list<A: Answer, R>(
        &self,
        route: &str,
        more: &[Parameter],
        rows: fn(&A) -> &Vec<R>,
    ) -> Result<(), Failure> {
        let service = self.service()?;
        let parameters = [&self.parameters_of(service.as_ref()), more].concat();
        let body = self.asking.get(route, &parameters)?;
        let answer: A = decode(&body)?;
        if let Some(name) = service.filter(|_| rows(&answer).is_empty()) {
            names::must_exist(&self.asking, &name)?;
        }
        self.asking.show(&body, &answer)
    }

    pub(super) fn ask<A: Answer>(&self, route: &str) -> Result<(), Failure> {
        self.asking.ask::<A>(route, &self.parameters()?)
    }

    pub(super) fn parameters(&self) -> Result<Vec<Parameter>, Failure> {
        Ok(self.parameters_of(self.service()?.as_ref()))
    }

    fn parameters_of(&self, service: Option<&ServiceName>) -> Vec<Parameter> {
        let service_parameter = service.map(|service| ("service", service.to_string()));
        let namespace = self.namespace.as_ref().filter(|_| service.is_none());
        let namespace = namespace.map(|namespace| ("namespace", namespace.clone()));
        let address = self.address.map(|address| ("address", address.to_string()));
        service_parameter.into_iter().chain(namespace).chain(address).collect()
    }
}

impl Rows {
    pub(super) fn list<A: Answer, R>(&self, route: &str, rows: fn(&A) -> &Vec<R>) -> Result<(), Failure> {
        self.addresses.list(route, &self.own_parameters(), rows)
    }

    fn own_parameters(&self) -> Vec<Parameter> {
        let kind = self.kind.map(|kind| ("type", kind.to_string()));
        kind.into_iter().chain(self.status.map(|status| ("status", status.to_string()))).collect()
    }
}

#[derive(Debug, Args)]
pub(super) struct Frontends {
    /// Keep running and print each change
    #[arg(short, long, help_heading = "Output")]
    pub(super) watch: bool,
    #[command(flatten)]
    pub(super) rows: Rows,
}

impl Frontends {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        if !self.watch {
            return self.rows.list("/frontends", |answer: &FrontendsAnswer| &answer.frontends);
        }
        let parameters = [self.rows.addresses.parameters()?, self.rows.own_parameters()].concat();
        self.rows.addresses.asking.follow::<FrontendsAnswer>("/frontends", &parameters)
    }
}

fn service_parameter(asking: &Asking, name: Option<&str>) -> Result<Option<Parameter>, Failure> {
    name.map(|name| Ok(("service", names::resolve(asking, name, None)?.to_string()))).transpose()
}

#[derive(Debug, Args)]
pub(super) struct Connections {
    /// Only connections to this service
    #[arg(value_name = "[NAMESPACE/]NAME", add = ArgValueCompleter::new(completions::services))]
    service: Option<String>,
    /// Filter by address of the client, the service or the backend
    #[arg(long, value_name = "ADDRESS", help_heading = "Filters")]
    address: Option<Addr>,
    /// Maximum number of connections [default: 1000]
    #[arg(long, value_name = "NUMBER", help_heading = "Filters")]
    limit: Option<u32>,
    #[command(flatten)]
    asking: Asking,
}

impl Connections {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let service = service_parameter(&self.asking, self.service.as_deref())?;
        let address = self.address.map(|address| ("address", address.to_string()));
        let limit = self.limit.map(|limit| ("limit", limit.to_string()));
        let parameters: Vec<Parameter> = [service, address, limit].into_iter().flatten().collect();
        self.asking.ask::<ConnectionsAnswer>("/connections", &parameters)
    }
}

#[derive(Debug, Args)]
pub(super) struct Drops {
    /// Only packets to this service
    #[arg(value_name = "[NAMESPACE/]NAME", add = ArgValueCompleter::new(completions::services))]
    service: Option<String>,
    #[command(flatten)]
    asking: Asking,
}

impl Drops {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let service = service_parameter(&self.asking, self.service.as_deref())?;
        self.asking.ask::<DropsAnswer>("/drops", &service.into_iter().collect::<Vec<_>>())
    }
}
