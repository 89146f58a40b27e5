; TypeScript alone, after ecmascript.scm. The captures are explained in grammars.py.
(abstract_class_declaration name: (_) @name) @def.class
(interface_declaration name: (_) @name) @def.interface
(type_alias_declaration name: (_) @name) @def.type
(enum_declaration name: (_) @name) @def.enum
(function_signature name: (_) @name) @def.function
(method_signature name: (_) @name) @def.method
(abstract_method_signature name: (_) @name) @def.method
(public_field_definition name: (_) @name) @def.field
(property_signature name: (_) @name) @def.field
(internal_module name: (_) @name) @def.module
(class_heritage (extends_clause value: (_) @base))
(class_heritage (implements_clause (_) @base))
(extends_type_clause type: (_) @base)
(type_identifier) @ref
