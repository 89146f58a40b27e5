; Go. The captures are explained in grammars.py.
(function_declaration name: (_) @name) @def.function
(method_declaration receiver: (parameter_list (parameter_declaration type: (_) @scope)) name: (_) @name) @def.method
(type_spec name: (_) @name type: (struct_type)) @def.struct
(type_spec name: (_) @name type: (interface_type)) @def.interface
(type_spec name: (_) @name) @def.type
(type_alias name: (_) @name) @def.type
(method_elem name: (_) @name) @def.method
(struct_type (field_declaration_list (field_declaration name: (_) @name) @def.field))
(source_file (const_declaration (const_spec name: (_) @name) @def.constant))
(source_file (var_declaration (var_spec name: (_) @name) @def.variable))
(source_file (var_declaration (var_spec_list (var_spec name: (_) @name) @def.variable)))
(call_expression function: (identifier) @call)
(call_expression function: (selector_expression field: (_) @member))
(import_spec path: (_) @module)
(identifier) @ref
(field_identifier) @ref
(type_identifier) @ref
