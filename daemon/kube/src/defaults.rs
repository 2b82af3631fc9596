//! Structs of time constants, with the default of each next to its meaning.

/// Defines a struct: `field: Type = default,`. `DEFAULT` has the defaults, which [`Default`] returns.
macro_rules! with_defaults {
    ($(#[$about:meta])* $name:ident { $($(#[$meta:meta])* $field:ident: $type:ty = $default:expr,)+ }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$meta])* pub $field: $type,)+
        }

        impl $name {
            pub const DEFAULT: Self = Self { $($field: $default,)+ };
        }

        impl Default for $name {
            fn default() -> Self {
                Self::DEFAULT
            }
        }
    };
}

pub(crate) use with_defaults;
