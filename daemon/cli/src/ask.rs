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

use super::addresses::address;
use super::answer::decode;
use super::asking::{Asking, Parameter, addresses};
use super::client::{self, At};
use super::completions;
use super::names::{self, Place};
use super::print::print;
use crate::exit::{Code, Failure};

/// Filters for rows that belong to a service and have an address.
#[derive(Debug, Args)]
pub(super) struct DaemonAddresses {
    /// Only this service, or only this address
    ///
    /// A name without a namespace stands for the service with this name, and an address with a port for the service that
    /// uses it.
    #[arg(value_name = "[NAMESPACE/]NAME|ADDRESS[:PORT]", conflicts_with = "service", add = ArgValueCompleter::new(completions::services))]
    pub(super) name: Option<String>,
    /// The same as NAMESPACE/NAME
    #[arg(long, value_name = "NAMESPACE/NAME", help_heading = "Filters", add = ArgValueCompleter::new(completions::services))]
    pub(super) service: Option<ServiceName>,
    /// Filter by namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = names::namespace, help_heading = "Filters")]
    pub(super) namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace", help_heading = "Filters")]
    pub(super) all_namespaces: bool,
    /// Filter by address, with any port
    #[arg(long, value_name = "ADDRESS", value_parser = address, help_heading = "Filters")]
    pub(super) address: Option<Addr>,
    #[command(flatten)]
    pub(super) asking: Asking,
}

/// The service and the address that a command line names.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) service: Option<ServiceName>,
    address: Option<Addr>,
}

impl Wanted {
    /// What the text names, which may be an address, and the address of an option.
    fn new(
        asking: &Asking,
        text: Option<&str>,
        namespace: Option<&str>,
        address: Option<Addr>,
    ) -> Result<Self, Failure> {
        let service = match text.map(|text| names::place(asking, text, namespace)).transpose()? {
            None => None,
            Some(Place::Service(service)) => Some(service),
            Some(Place::Address(named)) if address.is_none_or(|address| address == named) => {
                return Ok(Self { service: None, address: Some(named) });
            }
            Some(Place::Address(_)) => {
                return Err(Failure::message(Code::Usage, "two addresses are named: leave out --address"));
            }
        };
        Ok(Self { service, address })
    }

    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let service = self.service.as_ref().map(|service| ("service", service.to_string()));
        service.into_iter().chain(self.address.map(|address| ("address", address.to_string()))).collect()
    }

    /// Checks, after an answer without rows, that what is named exists.
    pub(super) fn must_exist(&self, asking: &Asking) -> Result<(), Failure> {
        self.service.as_ref().map_or(Ok(()), |service| names::must_exist(asking, service))?;
        self.address.map_or(Ok(()), |address| names::must_be_known(asking, address))
    }
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
    /// Returns the requested service and address.
    pub(super) fn wanted(&self) -> Result<Wanted, Failure> {
        match &self.service {
            Some(service) => Ok(Wanted { service: Some(service.clone()), address: self.address }),
            None => Wanted::new(&self.asking, self.name.as_deref(), self.namespace.as_deref(), self.address),
        }
    }

    /// Queries the daemon for a list of these rows and prints it. An empty list is a failure if the service or the address
    /// does not exist.
    pub(super) fn list<A: Answer>(
        &self,
        route: &str,
        more: &[Parameter],
        is_empty: fn(&A) -> bool,
    ) -> Result<(), Failure> {
        let wanted = self.wanted()?;
        let parameters = [&self.parameters_of(&wanted), more].concat();
        let body = self.asking.get(route, &parameters)?;
        let answer: A = decode(&body)?;
        if is_empty(&answer) {
            wanted.must_exist(&self.asking)?;
        }
        self.asking.show(&body, &answer)
    }

    pub(super) fn parameters(&self) -> Result<Vec<Parameter>, Failure> {
        Ok(self.parameters_of(&self.wanted()?))
    }

    pub(super) fn parameters_of(&self, wanted: &Wanted) -> Vec<Parameter> {
        let namespace = self.namespace.as_ref().filter(|_| wanted.service.is_none());
        let namespace = namespace.map(|namespace| ("namespace", namespace.clone()));
        wanted.parameters().into_iter().chain(namespace).collect()
    }
}

impl Rows {
    pub(super) fn list<A: Answer>(&self, route: &str, is_empty: fn(&A) -> bool) -> Result<(), Failure> {
        self.addresses.list(route, &self.own_parameters(), is_empty)
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
            return self.rows.list("/frontends", |answer: &FrontendsAnswer| answer.frontends.is_empty());
        }
        let parameters = [self.rows.addresses.parameters()?, self.rows.own_parameters()].concat();
        let asking = &self.rows.addresses.asking;
        asking.follow::<FrontendsAnswer>("/frontends", &parameters, asking.style())
    }
}

#[derive(Debug, Args)]
pub(super) struct Connections {
    /// Only connections to this service, or with this address of the client, service or backend
    #[arg(value_name = "[NAMESPACE/]NAME|ADDRESS[:PORT]", add = ArgValueCompleter::new(completions::services))]
    service: Option<String>,
    /// Filter by address of the client, the service or the backend
    #[arg(long, value_name = "ADDRESS", value_parser = address, help_heading = "Filters")]
    address: Option<Addr>,
    /// Maximum number of connections [default: 1000]
    #[arg(long, value_name = "NUMBER", help_heading = "Filters")]
    limit: Option<u32>,
    #[command(flatten)]
    asking: Asking,
}

impl Connections {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let wanted = Wanted::new(&self.asking, self.service.as_deref(), None, self.address)?;
        let limit = self.limit.map(|limit| ("limit", limit.to_string()));
        let parameters: Vec<Parameter> = wanted.parameters().into_iter().chain(limit).collect();
        let body = self.asking.get("/connections", &parameters)?;
        let answer: ConnectionsAnswer = decode(&body)?;
        if let Some(name) = wanted.service.filter(|_| answer.connections.is_empty()) {
            names::must_exist(&self.asking, &name)?;
        }
        self.asking.show(&body, &answer)
    }
}

#[derive(Debug, Args)]
pub(super) struct Drops {
    /// Only packets to this service, or to the service at this address
    #[arg(value_name = "[NAMESPACE/]NAME|ADDRESS[:PORT]", add = ArgValueCompleter::new(completions::services))]
    service: Option<String>,
    #[command(flatten)]
    asking: Asking,
}

impl Drops {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let service = self.service.as_ref().map(|name| names::resolve(&self.asking, name, None)).transpose()?;
        let parameters: Vec<Parameter> = service.iter().map(|service| ("service", service.to_string())).collect();
        let body = self.asking.get("/drops", &parameters)?;
        let answer: DropsAnswer = decode(&body)?;
        if let Some(name) = service.filter(|_| answer.drops.is_empty()) {
            names::must_exist(&self.asking, &name)?;
        }
        self.asking.show(&body, &answer)
    }
}

/// The answer has a format of its own.
#[derive(Debug, Args)]
pub(super) struct Metrics {
    /// Address of the daemon's admin API [default: its socket, then 127.0.0.1:9890 and [::1]:9890]
    #[arg(long, value_name = "ADDRESS:PORT|PATH", help_heading = "Connection")]
    admin: Option<At>,
}

impl Metrics {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        print(&client::get(&addresses(self.admin.as_ref()), "/metrics")?)
    }
}
