; C++ alone, after c.scm. The captures are explained in grammars.py.
(class_specifier name: (_) @name body: (_)) @def.class
(namespace_definition name: (_) @name) @def.module
(function_definition declarator: (function_declarator declarator: (field_identifier) @name)) @def.method
(function_definition declarator: (pointer_declarator declarator:
  (function_declarator declarator: (field_identifier) @name))) @def.method
(function_definition declarator: (reference_declarator
  (function_declarator declarator: (field_identifier) @name))) @def.method
(field_declaration declarator: (function_declarator declarator: (field_identifier) @name)) @def.method
(function_definition declarator: (function_declarator declarator:
  (qualified_identifier scope: (_) @scope name: (_) @name))) @def.method
(function_definition declarator: (pointer_declarator declarator: (function_declarator declarator:
  (qualified_identifier scope: (_) @scope name: (_) @name)))) @def.method
(alias_declaration name: (_) @name) @def.type
(base_class_clause (type_identifier) @base)
(base_class_clause (qualified_identifier) @base)
(call_expression function: (qualified_identifier name: (_) @member))
(call_expression function: (field_expression argument: (this) field: (field_identifier) @own))
