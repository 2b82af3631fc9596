//! The texts that parameters accept, as regular expressions for `/openapi.json`: exactly what their parsers accept, as the
//! test `cli::openapi` shows. Owns the expressions, which every dialect reads alike: they have no `\d` and no lookahead.

/// The names in the expressions below, each with its expression, which has only names after it.
const NAMED: [(&str, &str); 9] = [
    ("<part>", "[0-9A-Za-z._-]{1,253}"),
    // A port, and one that clients can connect to.
    ("<port>", "(0+|<open>)"),
    ("<open>", "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"),
    ("<v6>", "(<whole>|<short>)"),
    // All eight groups, the last two of which may be an IPv4 address.
    ("<whole>", "(<g>:){7}<g>|(<g>:){6}<v4>"),
    // Fewer groups, around `::`.
    (
        "<short>",
        "(<g>:){1,7}:|(<g>:){1,6}:<g>|(<g>:){1,5}(:<g>){1,2}|(<g>:){1,4}(:<g>){1,3}|(<g>:){1,3}(:<g>){1,4}|\
         (<g>:){1,2}(:<g>){1,5}|<g>:(:<g>){1,6}|:(:<g>){1,7}|::|\
         (<g>:){1,5}:<v4>|(<g>:){1,4}:<g>:<v4>|(<g>:){1,3}(:<g>){1,2}:<v4>|(<g>:){1,2}(:<g>){1,3}:<v4>|\
         <g>:(:<g>){1,4}:<v4>|:(:<g>){0,5}:<v4>",
    ),
    ("<g>", "[0-9A-Fa-f]{1,4}"),
    ("<v4>", "(<octet>\\.){3}<octet>"),
    ("<octet>", "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"),
];

pub(super) const NAMESPACE: &str = "^<part>$";
pub(super) const NAME: &str = "^<part>/<part>$";
pub(super) const ADDRESS: &str = "^(<v4>|<v6>)$";
/// An address with a port, and perhaps a protocol in any case.
pub(super) const DESTINATION: &str = "^(<v4>|\\[<v6>\\]):<open>(/([Tt][Cc][Pp]|[Uu][Dd][Pp]|[Ss][Cc][Tt][Pp]))?$";
pub(super) const CLIENT: &str = "^(host|pod|outside|[0-9]{1,19}|<v4>(:<port>)?|<v6>|\\[<v6>\\]:<port>)$";
/// The digits of the longest inode number.
pub(super) const INODE_DIGITS: usize = 19;
pub(super) const BACKEND: &str = "^(<v4>(:<port>)?|<v6>|\\[<v6>\\](:<port>)?)$";
/// The units from the largest to the smallest, each at most once.
pub(super) const DURATION: &str = "^([0-9]{1,9}d([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?|\
     [0-9]{1,9}h([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?|[0-9]{1,9}m([0-9]{1,9}s)?([0-9]{1,9}ms)?|\
     [0-9]{1,9}s([0-9]{1,9}ms)?|[0-9]{1,9}ms)$";
/// The digits of a duration's longest number.
pub(super) const DIGITS: usize = 9;

/// The expression without names.
pub(super) fn expanded(pattern: &str) -> String {
    NAMED.iter().fold(pattern.to_owned(), |text, (name, meaning)| text.replace(name, meaning))
}
