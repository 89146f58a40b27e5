; Rust. The captures are explained in grammars.py.
(function_item name: (_) @name) @def.function
(function_signature_item name: (_) @name) @def.function
(struct_item name: (_) @name) @def.struct
(union_item name: (_) @name) @def.struct
(enum_item name: (_) @name) @def.enum
(enum_variant name: (_) @name) @def.field
(field_declaration name: (_) @name) @def.field
(trait_item name: (_) @name) @def.trait
(impl_item type: (_) @name) @def.impl
(impl_item trait: (_) @base)
(mod_item name: (_) @name) @def.module
(type_item name: (_) @name) @def.type
(const_item name: (_) @name) @def.constant
(static_item name: (_) @name) @def.variable
(macro_definition name: (_) @name) @def.macro
(call_expression function: (identifier) @call)
(macro_invocation macro: (identifier) @call)
(call_expression function: (field_expression value: (self) field: (_) @own))
(call_expression function: (field_expression field: (_) @member))
(call_expression function: (scoped_identifier name: (_) @member))
(use_declaration argument: (_) @module)
(identifier) @ref
(field_identifier) @ref
(type_identifier) @ref
